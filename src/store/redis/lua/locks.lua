#!lua flags=no-writes
-- locks: a step through all holds, or the holds of one lock; only those that have not ended.
-- KEYS 1 locks
-- ARGV 1 now|'' 2 all|one 3 cursor|name
-- Returns { now, cursor, { name }, { slot }, { hold } }
-- include now, stand
local SCAN = 500
local cursor, found = '0', {}
if ARGV[2] == 'one' then
  local field = ARGV[3] .. '\0'
  for slot = 1, stand(ARGV[3], 1).width do
    found[2 * slot - 1], found[2 * slot] = field .. slot, redis.call('HGET', KEYS[1], field .. slot) or ''
  end
else
  cursor, found = unpack(redis.call('HSCAN', KEYS[1], ARGV[3], 'COUNT', SCAN))
end
local names, slots, holds = {}, {}, {}
for i = 1, #found, 2 do
  local name, slot = found[i]:match('^(.*)%z(%d+)$')
  local hold = found[i + 1]
  if name and (tonumber(hold:sub(1, 16)) or 0) > now then
    names[#names + 1], slots[#slots + 1], holds[#holds + 1] = name, slot, hold
  end
end
return { now, cursor, names, slots, holds }
