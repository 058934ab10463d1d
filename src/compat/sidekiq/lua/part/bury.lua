-- bury: an entry into the set of dead ones, which keeps the newest so many of the last so many days, as a burial of Ruby's does.
-- Where Ruby is set to keep more, very many may be there: a step takes only so many of them out, those that died first.
local trimmed = 0

local function bury(dead, entry)
  local MOST, SECONDS, TRIM_MAX = 10000, 180 * 86400, 1000
  redis.call('ZADD', dead, score(dead, now), entry)
  local old = redis.call('ZCOUNT', dead, '-inf', string.format('(%.6f', now / 1000000 - SECONDS))
  local over = math.min(math.max(old, redis.call('ZCARD', dead) - MOST), TRIM_MAX - trimmed)
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', dead, 0, over - 1)
    trimmed = trimmed + over
  end
end
