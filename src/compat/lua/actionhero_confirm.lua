#!lua flags=allow-oom
-- actionhero_confirm: a lock that was just taken counts, unless somebody has given it another end since.
-- ActionHero before 16.0.4 ignores that SETNX was refused, sends EXPIRE all the same, and takes the lock for its own:
-- then it is left to it, under a name that is nobody's, for as long as it said.
-- KEYS 1 locks 2 ActionHero's lock
-- ARGV 1 now|'' 2 name 3 ttl 4 owner 5 when the key ended, in ms 6 1: it is watched on
-- Returns { now, 1: it counts, or may still | 0: it is not ours any more, when the key ends, in ms }
-- include now, text, standing, watched
local key, owner = KEYS[2], ARGV[4]
local lock = standing(key, ARGV[2])
if lock.holder ~= owner or not lock.own then
  return { now, 0, 0 }
end
if redis.call('PEXPIRETIME', key) ~= tonumber(ARGV[5]) then
  redis.call('SET', key, 'an ActionHero node that did not look', 'XX', 'KEEPTTL')
  redis.call('HDEL', KEYS[1], lock.field)
  return { now, 0, 0 }
end
local ttl_ms = math.ceil(ARGV[3] / 1000)
redis.call('PEXPIRE', key, ARGV[6] == '1' and watched(ttl_ms) or ttl_ms)
redis.call('HSET', KEYS[1], lock.field, text(now + ARGV[3]) .. lock.hold:sub(17))
return { now, 1, redis.call('PEXPIRETIME', key) }
