-- set_next_tick: writes to conf when the first cron rule of the queue is to be checked, for claims and heartbeats, and the latest
-- time at which ticks were planned. Returns the first of these, or ''.
-- needs: to_digits, parse_int
local function set_next_tick()
  local first = tonumber(redis.call('ZRANGE', @ticks, 0, 0, 'WITHSCORES')[2])
  local planned_at = math.max(now, parse_int(redis.call('HGET', @conf, 'planned_at'), 16))
  if first then
    redis.call('HSET', @conf, 'next_tick', to_digits(first), 'planned_at', to_digits(planned_at))
    return to_digits(first)
  end
  redis.call('HDEL', @conf, 'next_tick')
  -- If the clock was far enough ahead, no rule has a tick any more.
  if redis.call('EXISTS', @cron) == 1 then
    redis.call('HSET', @conf, 'planned_at', to_digits(planned_at))
  else
    redis.call('HDEL', @conf, 'planned_at')
  end
  return ''
end
