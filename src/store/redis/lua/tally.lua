#!lua flags=allow-oom
-- tally: how many jobs each node holds, counted by what is held, and as conf says; with ARGV 2 conf is put right.
-- KEYS 1 conf 2 held 3 stale
-- ARGV 1 now|'' 2 1|0
-- Returns { now, { node, counted, as conf says } that differ, highest fence held, last fence, stale tickets that conf hides(1|0) }
-- include now, text, whole, holds
local counted, differ, highest = {}, {}, 0
for _, value in ipairs(redis.call('HVALS', KEYS[2])) do
  local node = value:sub(1, 36)
  counted[node] = (counted[node] or 0) + 1
  highest = math.max(highest, whole(value:sub(38, 53), 16))
end
local fields = redis.call('HKEYS', KEYS[1])
for _, node in ipairs(fields) do
  if #node == 36 and not counted[node] then
    counted[node] = 0
  end
end
for node, count in pairs(counted) do
  local told = holds_of(KEYS[1], node)
  if told ~= count then
    differ[#differ + 1] = { node, count, told }
  end
end
local last = whole(redis.call('HGET', KEYS[1], 'fence'), 16)
local hidden = redis.call('SCARD', KEYS[3]) > 0 and redis.call('HEXISTS', KEYS[1], 'stale') == 0
if ARGV[2] == '1' then
  for _, row in ipairs(differ) do
    redis.call('HSET', KEYS[1], row[1], row[2])
  end
  if highest > last then
    redis.call('HSET', KEYS[1], 'fence', text(highest))
  end
  if hidden then
    redis.call('HSET', KEYS[1], 'stale', 1)
  end
end
return { now, differ, text(highest), text(last), hidden and 1 or 0 }
