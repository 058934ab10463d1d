#!lua flags=no-writes
-- locks: returns a page of all holds, or the holds of one lock; only those that have not ended.
-- keys: locks
-- args: now mode at
--   mode: all or one; at: the cursor, or the name of the lock
-- Returns { now, cursor, { name }, { slot }, { hold } }
-- include read_time
local SCAN, SLOTS_MAX = 500, 1000
local cursor, found = '0', {}
if $mode == 'one' then
  local field = $at .. '\0'
  for slot = 1, math.min(tonumber(redis.call('HGET', @locks, field)) or 1, SLOTS_MAX) do
    found[2 * slot - 1], found[2 * slot] = field .. slot, redis.call('HGET', @locks, field .. slot) or ''
  end
else
  cursor, found = unpack(redis.call('HSCAN', @locks, $at, 'COUNT', SCAN))
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
