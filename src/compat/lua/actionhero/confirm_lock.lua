#!lua flags=allow-oom
-- confirm_lock: a lock that was just taken counts, unless another client has given its key another end since.
-- ActionHero before 16.0.4 ignores that SETNX was refused, sends EXPIRE, and believes that it has the lock. Then the lock is left
-- to it, with a value that is no owner, for as long as ActionHero said: EXPIRE does not carry the owner, so the value cannot be the
-- one that its unlock expects; and without the key, a third node would take the lock while that one works.
-- keys: locks lock_key
-- args: now name ttl owner ends_ms is_watched
--   ends_ms: when the key ended; is_watched: 1 if another confirm_lock follows
-- Returns { now, 1 if it counts so far, else 0, when the key ends in ms }
-- include read_time, to_digits, read_foreign_lock, pad_ttl
local key = @lock_key
local lock = read_foreign_lock(key, $name)
if lock.holder ~= $owner or not lock.own then
  return { now, 0, 0 }
end
if redis.call('PEXPIRETIME', key) ~= tonumber($ends_ms) then
  redis.call('SET', key, 'ActionHero node (lock not confirmed)', 'XX', 'KEEPTTL')
  redis.call('HDEL', @locks, lock.field)
  return { now, 0, 0 }
end
local ttl_ms = math.ceil($ttl / 1000)
redis.call('PEXPIRE', key, $is_watched == '1' and pad_ttl(ttl_ms) or ttl_ms)
redis.call('HSET', @locks, lock.field, to_digits(now + $ttl) .. lock.hold:sub(17))
return { now, 1, redis.call('PEXPIRETIME', key) }
