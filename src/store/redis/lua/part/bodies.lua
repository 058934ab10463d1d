-- bodies: the records of some jobs, a few at a time, and no more than so many bytes: what does not fit in is left out, as the end
-- of the list; but so many come at least. Nobody else is answered meanwhile, and who listens on a connection is cut off when it is owed too much.
local FEW = 16
local function bodies(job, ids, most, least)
  local found, bytes = {}, 0
  for at = 1, #ids, FEW do
    local some = redis.call('HMGET', job, unpack(ids, at, math.min(at + FEW - 1, #ids)))
    for i = 1, #some do
      bytes = bytes + (some[i] and #some[i] or 0)
      if bytes > most and #found >= least then
        return found
      end
      found[at + i - 1] = some[i]
    end
  end
  return found
end
