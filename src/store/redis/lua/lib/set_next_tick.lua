-- set_next_tick: writes to conf when the first cron rule of the queue is to be checked, for claims and heartbeats. Returns
-- that time, or ''.
-- needs: to_digits
local function set_next_tick()
  local first = tonumber(redis.call('ZRANGE', @ticks, 0, 0, 'WITHSCORES')[2])
  if not first then
    redis.call('HDEL', @conf, 'next_tick')
    return ''
  end
  redis.call('HSET', @conf, 'next_tick', to_digits(first))
  return to_digits(first)
end
