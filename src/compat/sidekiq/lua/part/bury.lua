-- bury: an entry into the set of dead ones, which keeps the newest so many of the last so many days.
local function bury(dead, entry)
  local MOST, SECONDS = 10000, 180 * 86400
  redis.call('ZADD', dead, score(dead, now), entry)
  redis.call('ZREMRANGEBYSCORE', dead, '-inf', string.format('(%.6f', now / 1000000 - SECONDS))
  redis.call('ZREMRANGEBYRANK', dead, 0, -(MOST + 1))
end
