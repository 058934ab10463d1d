#!lua flags=allow-oom
-- add_kinds: adds what attempts have come to, by kind, to the present hour; with a new hour, those past their time go.
-- KEYS 1 kinds
-- ARGV 1 now|'' 2 how many hours stay 3 most kinds of an hour 4 what the rest goes by
--      5... kind, and place (two digits), count and a space of each number
-- Returns { now }
-- include now
local hour = math.floor(now / 3600000000)
local field = string.format('%.0f', hour)
local known = tonumber(redis.call('HGET', KEYS[1], field)) or 0
if known == 0 then
  for _, old in ipairs(redis.call('HKEYS', KEYS[1])) do
    if (tonumber(old:match('^%d+')) or 0) <= hour - tonumber(ARGV[2]) then
      redis.call('HDEL', KEYS[1], old)
    end
  end
end
for at = 5, #ARGV, 2 do
  local of = field .. '.' .. ARGV[at]
  local before = redis.call('HGET', KEYS[1], of)
  if not before and known >= tonumber(ARGV[3]) then
    of = field .. '.' .. ARGV[4]
    before = redis.call('HGET', KEYS[1], of)
  end
  known = before and known or known + 1
  local counts, places = {}, {}
  for place, count in ((before or '') .. ARGV[at + 1]):gmatch('(%d%d)(%d+) ') do
    if not counts[place] then
      places[#places + 1] = place
    end
    counts[place] = (counts[place] or 0) + tonumber(count)
  end
  for i, place in ipairs(places) do
    places[i] = place .. string.format('%.0f ', counts[place])
  end
  redis.call('HSET', KEYS[1], of, table.concat(places))
end
redis.call('HSET', KEYS[1], field, known)
return { now }
