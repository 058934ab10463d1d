-- read_foreign_lock: returns the state of a lock of ActionHero. ActionHero's key decides who holds the lock: its value is the
-- owner. The rest of a hold by duly is in the lock keys of duly: ends, fence, since, node, owner, ttl, note.

-- ActionHero does not publish the end of a lock: the next waiter looks as often as ActionHero does.
local LOOK_EVERY = 100000

local function read_foreign_lock(key, name)
  local lock = { field = name .. '\0' .. '1' }
  local holder = redis.pcall('GET', key)
  -- A value of another type: the lock is not free, and no node of duly has it.
  lock.holder = type(holder) == 'table' and '' or holder
  lock.hold = redis.call('HGET', @locks, lock.field)
  if not lock.holder then
    lock.left = 0
    return lock
  end
  local left = redis.call('PTTL', key)
  lock.own = lock.hold and lock.hold:sub(85, 120) == lock.holder
  lock.left = left >= 0 and left * 1000 or LOOK_EVERY
  if not lock.own then
    lock.left = math.min(lock.left, LOOK_EVERY)
  end
  return lock
end
