-- read_records: returns the records of some jobs, read a few at a time, up to `max_bytes`. The jobs at the end of the list that
-- do not fit are left out, but at least `least` are read. The server does nothing else meanwhile, and closes a connection
-- with a subscription if its replies grow too large.
local function read_records(ids, max_bytes, least)
  local FIRST, FEW = 4, 16
  local found, bytes, at, few = {}, 0, 1, FIRST
  while at <= #ids do
    local some = redis.call('HMGET', @job, unpack(ids, at, math.min(at + few - 1, #ids)))
    for i = 1, #some do
      bytes = bytes + (some[i] and #some[i] or 0)
      if bytes > max_bytes and #found >= least then
        return found
      end
      found[at + i - 1] = some[i]
    end
    at = at + few
    -- As many as fit if they are like those before: a record that is read in vain takes its time too.
    few = math.max(1, math.min(FEW, math.floor((max_bytes - bytes) * (at - 1) / math.max(bytes, 1))))
  end
  return found
end
