#!lua flags=no-writes
-- waiting: how many stand in line before each of these locks; of a long line the dead at its head are not counted.
-- KEYS 1 locks 2 line 3 places 4 presence
-- ARGV 1 now|'' 2... names
-- Returns { now, { how many } }
-- include now, alive, line
local counts = {}
for n = 2, #ARGV do
  local name = ARGV[n]
  local count = redis.call('ZLEXCOUNT', KEYS[2], '[' .. name .. '\0', '(' .. name .. '\1')
  counts[#counts + 1] = count > 0 and count - #line_of(name, LOOK).dead or 0
end
return { now, counts }
