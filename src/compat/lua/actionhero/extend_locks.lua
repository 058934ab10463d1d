#!lua flags=allow-oom
-- extend_locks: extends holds of locks of ActionHero, each only if its owner still has it.
-- keys: locks lock_keys...
-- args: now requests...
--   requests: name, owner and ttl for each of lock_keys
-- Returns { now, { 1: extended | 0: not held } }
-- include read_time, to_digits, read_foreign_lock
local results = {}
for n = 1, #@lock_keys do
  local at = &requests + 3 * (n - 1)
  local name, owner, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local lock = read_foreign_lock(@lock_keys[n], name)
  local is_held = lock.own and lock.holder == owner
  if is_held then
    redis.call('PEXPIRE', @lock_keys[n], math.ceil(ttl / 1000))
    redis.call('HSET', @locks, lock.field, to_digits(now + ttl) .. lock.hold:sub(17))
  end
  results[n] = is_held and 1 or 0
end
return { now, results }
