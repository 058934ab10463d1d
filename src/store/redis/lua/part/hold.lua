-- hold: a node that holds something must have a lease. One that had let it lapse has not been in contact all the time.
-- One that held something before has one already.
-- KEYS 2 lease 3 since
local function hold(node, holds, lease)
  if holds > 0 then
    return
  end
  local ends = tonumber(redis.call('ZSCORE', KEYS[2], node))
  if not ends or ends < now then
    redis.call('ZADD', KEYS[3], now, node)
  end
  if not ends or ends < now + lease * 0.5 then
    redis.call('ZADD', KEYS[2], now + lease, node)
  end
end
