-- standing: how a lock of ActionHero's stands. Its own key decides who holds it: the value is the owner, and nothing else.
-- What else is known of a hold of duly's is beside it, as in every hall: ends, fence, since, node, owner, note.
-- KEYS 1 locks

-- Nobody says so when a lock of ActionHero's ends: whoever is next looks as often as ActionHero does.
local LOOK_EVERY = 100000

local function standing(key, name)
  local lock = { field = name .. '\0' .. '1' }
  local holder = redis.pcall('GET', key)
  -- Something else than a text is in the way: it is not free, and nobody of ours has it.
  lock.holder = type(holder) == 'table' and '' or holder
  lock.hold = redis.call('HGET', KEYS[1], lock.field)
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
