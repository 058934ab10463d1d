#!lua flags=allow-oom
-- break_lock: ends all holds of a lock, whoever has them, and tells those who had them and who is next.
-- KEYS 1 locks 2 line 3 places 4 presence
-- ARGV 1 now|'' 2 name
-- Returns { now, how many there were, 1: the dead were in the way, say it again }
-- include now, alive, line, stand, tell
local name = ARGV[2]
local lock = stand(name, 1)
for slot = 1, lock.width do
  local hold = redis.call('HGET', KEYS[1], lock.field .. slot)
  if hold then
    tell(name, { node = hold:sub(49, 84), owner = hold:sub(85, 120) })
    redis.call('HDEL', KEYS[1], lock.field .. slot)
  end
end
local line = line_of(name, LOOK)
step_out(line.dead)
tell_first(name, line.living, 0)
if #line.living == 0 and not line.more then
  redis.call('HDEL', KEYS[1], lock.field)
end
return { now, lock.held, line.more and #line.living == 0 and 1 or 0 }
