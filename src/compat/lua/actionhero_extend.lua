#!lua flags=allow-oom
-- actionhero_extend: lets holds of ActionHero's locks last longer, each only if its owner still has it.
-- KEYS 1 locks 2... ActionHero's locks
-- ARGV 1 now|'' 2... name, owner, ttl of each
-- Returns { now, { 1: extended | 0: not held } }
-- include now, text, standing
local answers = {}
for n = 2, #KEYS do
  local at = 3 * n - 4
  local name, owner, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local lock = standing(KEYS[n], name)
  local ours = lock.own and lock.holder == owner
  if ours then
    redis.call('PEXPIRE', KEYS[n], math.ceil(ttl / 1000))
    redis.call('HSET', KEYS[1], lock.field, text(now + ttl) .. lock.hold:sub(17))
  end
  answers[n - 1] = ours and 1 or 0
end
return { now, answers }
