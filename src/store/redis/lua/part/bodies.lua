-- bodies: the records of some jobs, a few at a time, and no more than so many bytes: what does not fit in is left out, as the end
-- of the list; but so many come at least. Nobody else is answered meanwhile, and who listens on a connection is cut off when it is owed too much.
local FIRST, FEW = 4, 16
local function bodies(job, ids, most, least)
  local found, bytes, at, few = {}, 0, 1, FIRST
  while at <= #ids do
    local some = redis.call('HMGET', job, unpack(ids, at, math.min(at + few - 1, #ids)))
    for i = 1, #some do
      bytes = bytes + (some[i] and #some[i] or 0)
      if bytes > most and #found >= least then
        return found
      end
      found[at + i - 1] = some[i]
    end
    at = at + few
    -- As many as will fit in if they are like those before: what is read in vain takes its time too.
    few = math.max(1, math.min(FEW, math.floor((most - bytes) * (at - 1) / math.max(bytes, 1))))
  end
  return found
end
