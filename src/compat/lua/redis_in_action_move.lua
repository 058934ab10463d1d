#!lua flags=allow-oom
-- redis_in_action_move: moves delayed items that are due into their lists, byte for byte, each only if it is still there.
-- One whose lock a poller holds is left to it; a lock without an end that has not changed for very long is a dead poller's.
-- KEYS 1 delayed 2 seen (hash: lock to since when, and by whom) 3 Sidekiq's queues 4... lock, list of each
-- ARGV 1 now|'' 2 how long a lock without an end is respected 3... item, queue of each
-- Returns { now, how many were moved, how many were left }
-- include now, text, mixed
local moved, left = 0, 0

-- Whether somebody else is about to move it.
local function locked(lock)
  local holder = redis.pcall('GET', lock)
  if not holder then
    return false
  end
  holder = type(holder) == 'table' and '' or holder
  if redis.call('PTTL', lock) >= 0 then
    return true
  end
  local seen = redis.call('HGET', KEYS[2], lock)
  if not seen or seen:sub(17) ~= holder then
    redis.call('HSET', KEYS[2], lock, text(now) .. holder)
    return true
  end
  if now - (tonumber(seen:sub(1, 16)) or 0) < tonumber(ARGV[2]) then
    return true
  end
  redis.call('DEL', lock)
  return false
end

for n = 3, #ARGV, 2 do
  local lock, list = KEYS[n + 1], KEYS[n + 2]
  if locked(lock) or mixed(list, KEYS[3], ARGV[n + 1]) then
    left = left + 1
  else
    redis.call('HDEL', KEYS[2], lock)
    if redis.call('ZREM', KEYS[1], ARGV[n]) == 1 then
      redis.call('RPUSH', list, ARGV[n])
      moved = moved + 1
    end
  end
end
return { now, moved, left }
