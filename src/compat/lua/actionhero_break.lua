#!lua flags=allow-oom
-- actionhero_break: ends a lock of ActionHero's, whoever has it, and tells a holder of duly's and who is next.
-- KEYS 1 locks 2 line 3 places 4 presence 5 ActionHero's lock
-- ARGV 1 now|'' 2 name
-- Returns { now, 1: it was held, 1: the dead were in the way, say it again }
-- include now, alive, line, tell, standing
local name, key = ARGV[2], KEYS[5]
local lock = standing(key, name)
if lock.own then
  tell(name, { node = lock.hold:sub(49, 84), owner = lock.hold:sub(85, 120) })
end
redis.call('DEL', key)
redis.call('HDEL', KEYS[1], lock.field)
local line = line_of(name, LOOK)
step_out(line.dead)
tell_first(name, line.living, 0)
return { now, lock.holder and 1 or 0, line.more and #line.living == 0 and 1 or 0 }
