#!lua flags=allow-oom
-- lock: takes a lock of ActionHero for an owner, or adds the owner to duly's waiters for it.
-- keys: locks lock_waiters waiter_index presence lock_key
-- args: now name ttl holder wait_lease is_watched
--   holder: node, owner (36 each), ttl (16 digits), note; wait_lease: '' if the owner does not wait, else the lease of its node
--   is_watched: 1 if the lock counts only after confirm_lock
-- Returns { now, 1, fence, when the key ends in ms }, or { now, 0, owners ahead, how long until a look is useful|'' if it is free,
--   1 if dead nodes were in the way: send it again }
-- include read_time, to_digits, find_alive, list_waiters, add_waiter, read_foreign_lock, pad_ttl
local name, key, holder = $name, @lock_key, $holder
local node, owner, waits = holder:sub(1, 36), holder:sub(37, 72), $wait_lease ~= ''
local ends, ttl_ms = to_digits(now + $ttl), math.ceil($ttl / 1000)
ttl_ms = $is_watched == '1' and pad_ttl(ttl_ms) or ttl_ms
local lock = read_foreign_lock(key, name)
if lock.holder == owner and lock.own then
  redis.call('PEXPIRE', key, ttl_ms)
  redis.call('HSET', @locks, lock.field, ends .. lock.hold:sub(17))
  return { now, 1, lock.hold:sub(17, 32), redis.call('PEXPIRETIME', key) }
end
local waiters = list_waiters(name, WAITERS_SCAN_MAX, waits and node)
local ahead, mine, unseen = #waiters.living, nil, waiters.more
for i, waiter in ipairs(waiters.living) do
  if waiter.owner == owner then
    ahead, mine, unseen = i - 1, waiter.member, false
    break
  end
end
if unseen then
  mine = redis.call('HGET', @waiter_index, owner .. name)
  mine = mine and redis.call('ZSCORE', @lock_waiters, mine) and mine
  ahead = redis.call('ZLEXCOUNT', @lock_waiters, '[' .. name .. '\0', '(' .. (mine or name .. '\1')) - #waiters.dead
end
remove_waiters(waiters.dead)
if not lock.holder and ahead == 0 and not unseen then
  remove_waiters({ mine })
  local last = tonumber(redis.call('HGET', @locks, '')) or 0
  local fence = to_digits(math.max(last + 1, now))
  redis.call('SET', key, owner, 'NX', 'PX', ttl_ms)
  redis.call('HSET', @locks, '', fence, lock.field, ends .. fence .. to_digits(now) .. holder)
  return { now, 1, fence, redis.call('PEXPIRETIME', key) }
end
if waits and not mine then
  add_waiter(name, owner, node, 1)
end
if waits then
  redis.call('ZADD', @presence, 'GT', now + $wait_lease, node)
end
return { now, 0, ahead, lock.holder and lock.left or '', unseen and #waiters.dead > 0 and 1 or 0 }
