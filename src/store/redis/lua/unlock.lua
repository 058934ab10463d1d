#!lua flags=allow-oom
-- unlock: gives up whatever an owner has of a lock, its slot or its place in the line, or only that; and tells who is next.
-- KEYS 1 locks 2 line 3 places 4 presence
-- ARGV 1 now|'' 2 name 3 slots 4 owner 5 1: only its place in the line|''
-- Returns { now, 1: it held a slot, 1: the dead were in the way, say it again }
-- include now
local name, slots, owner, field = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[2] .. '\0'
local one = field .. '1'

-- A lock without a mark has one slot, and nobody waits for it: there is nobody to tell.
local values = redis.call('HMGET', KEYS[1], field, one)
if not values[1] and slots == 1 then
  local hold = values[2]
  if not hold or hold:sub(85, 120) ~= owner or (tonumber(hold:sub(1, 16)) or 0) <= now then
    return { now, 0, 0 }
  end
  return { now, ARGV[5] == '' and redis.call('HDEL', KEYS[1], one) or 0, 0 }
end
-- include alive, line, stand, tell
local NEAR = 4
local lock = stand(name, slots, owner)
local released = ARGV[5] == '' and lock.own
local held = lock.held - (released and 1 or 0)
if released then
  redis.call('HDEL', KEYS[1], field .. released)
end
local place = redis.call('HGET', KEYS[3], owner .. name)
step_out({ place or nil })
local line = line_of(name, NEAR)
if #line.dead > 0 or lock.width > 1 then
  line = line_of(name, LOOK)
end
step_out(line.dead)
tell_first(name, line.living, held)
if held == 0 and #line.living == 0 and not line.more then
  redis.call('HDEL', KEYS[1], field)
end
return { now, released and 1 or 0, line.more and #line.living == 0 and 1 or 0 }
