#!lua flags=no-writes
-- locks: returns the holders of these locks of ActionHero, and duly's record of each hold.
-- keys: locks lock_keys...
-- args: now names...
-- Returns { now, { name }, { holder }, { ms left, -1 without an end }, { hold by duly|'' } }
-- include read_time, read_foreign_lock
local names, holders, lefts, holds = {}, {}, {}, {}
for n = 1, #@lock_keys do
  local lock = read_foreign_lock(@lock_keys[n], $names[n])
  if lock.holder then
    local at = #names + 1
    names[at], holders[at], lefts[at] = $names[n], lock.holder, redis.call('PTTL', @lock_keys[n])
    holds[at] = lock.own and lock.hold or ''
  end
end
return { now, names, holders, lefts, holds }
