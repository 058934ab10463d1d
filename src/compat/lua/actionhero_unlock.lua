#!lua flags=allow-oom
-- actionhero_unlock: gives up what an owner has of a lock of ActionHero's, or only its place in duly's line; tells who is next in it.
-- KEYS 1 locks 2 line 3 places 4 presence 5 ActionHero's lock
-- ARGV 1 now|'' 2 name 3 owner 4 1: only its place in the line|''
-- Returns { now, 1: it held the lock, 1: the dead were in the way, say it again }
-- include now, alive, line, tell, standing
local name, owner, key = ARGV[2], ARGV[3], KEYS[5]
local lock = standing(key, name)
local all = ARGV[4] == ''
local held = all and lock.own and lock.holder == owner
if held then
  redis.call('DEL', key)
end
if all and lock.hold and lock.hold:sub(85, 120) == owner then
  redis.call('HDEL', KEYS[1], lock.field)
end
local place = redis.call('HGET', KEYS[3], owner .. name)
step_out({ place or nil })
local line = line_of(name, LOOK)
step_out(line.dead)
-- Also who waits behind one of ActionHero's: the first in line is the one who looks.
if held or place or not lock.holder then
  tell_first(name, line.living, 0)
end
return { now, held and 1 or 0, line.more and #line.living == 0 and 1 or 0 }
