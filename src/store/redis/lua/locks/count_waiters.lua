#!lua flags=no-writes
-- count_waiters: returns how many owners wait for each of these locks. If many wait, dead nodes behind the first ones count too.
-- keys: lock_waiters waiter_index presence
-- args: now names...
-- Returns { now, { how many } }
-- include read_time, find_alive, list_waiters
local counts = {}
for n = &names, #ARGV do
  local name = ARGV[n]
  local count = redis.call('ZLEXCOUNT', @lock_waiters, '[' .. name .. '\0', '(' .. name .. '\1')
  counts[#counts + 1] = count > 0 and count - #list_waiters(name, WAITERS_SCAN_MAX).dead or 0
end
return { now, counts }
