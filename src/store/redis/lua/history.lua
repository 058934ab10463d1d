#!lua flags=no-writes
-- history: what has happened in some minutes.
-- KEYS 1 history
-- ARGV 1 now|'' 2 how many minutes ago the first is 3 how many, at most 60
-- Returns { now, first minute, { 62 numbers of each minute } }
-- include now
local first = math.floor(now / 60000000) - ARGV[2]
local fields = {}
for minute = first, first + ARGV[3] - 1 do
  for place = 0, 61 do
    fields[#fields + 1] = string.format('%.0f.%02d', minute, place)
  end
end
return { now, string.format('%.0f', first), redis.call('HMGET', KEYS[1], unpack(fields)) }
