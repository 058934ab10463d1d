-- acquire_contended: takes a free slot of a lock with several slots, or of one that others hold or wait for; or adds a waiter.
-- `hold` is the new hold without the time at which it ends. Returns the reply of the script.
-- needs: list_waiters, add_waiter, read_lock, notify_waiter
local function acquire_contended(name, slots, ends, fence, hold)
  local NEAR, field = 4, name .. '\0'
  local node, owner, waits = $holder:sub(1, 36), $holder:sub(37, 72), $wait_lease ~= ''
  local lock = read_lock(name, slots, owner)
  if lock.own then
    redis.call('HSET', @locks, field .. lock.own, ends .. lock.hold:sub(17, 120) .. hold:sub(105, 120) .. lock.hold:sub(137))
    return { now, lock.own, lock.hold:sub(17, 32) }
  end
  -- Only as many waiters matter as slots are free.
  local free = slots - lock.held
  local waiters = list_waiters(name, math.min(WAITERS_SCAN_MAX, math.max(free, 0) + NEAR), waits and node)
  if #waiters.dead > 0 and waiters.more then
    waiters = list_waiters(name, WAITERS_SCAN_MAX, waits and node)
  end
  local ahead, mine, unseen = #waiters.living, nil, waiters.more
  for i, waiter in ipairs(waiters.living) do
    if waiter.owner == owner then
      ahead, mine, unseen = i - 1, waiter.member, false
      table.remove(waiters.living, i)
      break
    end
  end
  if unseen then
    mine = redis.call('HGET', @waiter_index, owner .. name)
    mine = mine and redis.call('ZSCORE', @lock_waiters, mine) and mine
    ahead = redis.call('ZLEXCOUNT', @lock_waiters, '[' .. field, '(' .. (mine or name .. '\1')) - #waiters.dead
  end
  remove_waiters(waiters.dead)
  if ahead < free and not unseen then
    remove_waiters({ mine })
    if slots > lock.width then
      redis.call('HSET', @locks, field, slots)
    end
    -- Several slots are free, and of many waiters only the first were notified: one more may come now.
    local next_waiter = mine and waiters.living[math.min(free - 1, #waiters.living)]
    if next_waiter then
      notify_waiter(name, next_waiter)
    end
    redis.call('HSET', @locks, '', fence, field .. lock.free_slot, ends .. hold)
    return { now, lock.free_slot, fence }
  end
  if waits and not mine then
    -- The mark says that an owner waits.
    add_waiter(name, owner, node, slots)
    redis.call('HSETNX', @locks, field, slots)
  end
  if waits then
    redis.call('ZADD', @presence, 'GT', now + $wait_lease, node)
  elseif free > 0 and waiters.living[1] then
    -- A slot is free, but the first waiter may have missed its turn.
    notify_waiter(name, waiters.living[1])
  end
  return { now, 0, ahead, free <= 0 and lock.soonest or '', unseen and #waiters.dead > 0 and 1 or 0 }
end
