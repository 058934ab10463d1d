-- find_known: returns those of some ids that belong to a job, or to a removed job that is still remembered.
local function find_known(ids)
  local CHUNK, known = 1000, {}
  for at = 1, #ids, CHUNK do
    local some = { unpack(ids, at, math.min(at + CHUNK - 1, #ids)) }
    local first, second = redis.call('SMISMEMBER', @removed[1], unpack(some)), redis.call('SMISMEMBER', @removed[2], unpack(some))
    -- An id with an old ticket in a list counts as known too: a new ticket would be taken for the old one.
    local stale = redis.call('SMISMEMBER', @stale, unpack(some))
    for n, id in ipairs(some) do
      if first[n] + second[n] + stale[n] + redis.call('HEXISTS', @job, id) > 0 then
        known[#known + 1] = id
      end
    end
  end
  return known
end
