-- tick: conf says when the first rule of a queue is to be looked at, where claims and beats see it. Returns that moment, or ''.
local function set_tick(conf, ticks)
  local first = tonumber(redis.call('ZRANGE', ticks, 0, 0, 'WITHSCORES')[2])
  if not first then
    redis.call('HDEL', conf, 'tick')
    return ''
  end
  redis.call('HSET', conf, 'tick', text(first))
  return text(first)
end
