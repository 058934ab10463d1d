-- bury_entry: adds an entry to the dead set, which keeps the newest entries of the last days, as Sidekiq does in Ruby.
-- If Ruby is configured to keep more, there may be very many: one script removes at most TRIM_MAX, oldest first.
-- needs: pick_score
local trimmed = 0

local function bury_entry(entry)
  local ENTRIES_MAX, SECONDS, TRIM_MAX = 10000, 180 * 86400, 1000
  redis.call('ZADD', @dead, pick_score(@dead, now), entry)
  local old = redis.call('ZCOUNT', @dead, '-inf', string.format('(%.6f', now / 1000000 - SECONDS))
  local over = math.min(math.max(old, redis.call('ZCARD', @dead) - ENTRIES_MAX), TRIM_MAX - trimmed)
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', @dead, 0, over - 1)
    trimmed = trimmed + over
  end
end
