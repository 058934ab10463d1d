#!lua flags=no-writes
-- history: returns the counters of some minutes.
-- keys: conf history
-- args: now first_ago minutes
--   first_ago: how many minutes ago the first is; minutes: how many, at most 60
-- Returns { now, first minute, { for each minute: 63 counters } }
-- include read_time, check_format
local first = math.floor(now / 60000000) - $first_ago
local fields = {}
for minute = first, first + $minutes - 1 do
  for counter = 0, 62 do
    fields[#fields + 1] = string.format('%.0f.%02d', minute, counter)
  end
end
return { now, string.format('%.0f', first), redis.call('HMGET', @history, unpack(fields)) }
