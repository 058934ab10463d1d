#!lua flags=no-writes
-- actionhero_locks: who holds these locks of ActionHero's, and what duly knows of it.
-- KEYS 1 locks 2... ActionHero's locks
-- ARGV 1 now|'' 2... names
-- Returns { now, { name }, { holder }, { ms left, -1 without an end }, { hold of duly's|'' } }
-- include now, standing
local names, holders, lefts, holds = {}, {}, {}, {}
for n = 2, #KEYS do
  local lock = standing(KEYS[n], ARGV[n])
  if lock.holder then
    local at = #names + 1
    names[at], holders[at], lefts[at] = ARGV[n], lock.holder, redis.call('PTTL', KEYS[n])
    holds[at] = lock.own and lock.hold or ''
  end
end
return { now, names, holders, lefts, holds }
