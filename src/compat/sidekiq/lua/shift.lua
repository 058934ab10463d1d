#!lua flags=allow-oom
-- shift: takes entries of one queue out of the place they are in, each only if it is still there, and puts them elsewhere.
-- KEYS 1 conf 2 from 3 to 4,5 gone 6 idle 7 queues 8 job 9 crashes
-- ARGV 1 now|'' 2 channel 3 age of remembered ids 4 mover|'' 5 from: list, set or done 6 to: list, set or '' 7 due|+delay|''
--      8 queue 9... id, entry and new entry of each
-- Returns { now, 'moving' | 'open' | why not, how many }: nothing is done in a moving queue but by its mover, and he does so only there
-- include now, wake, gone, score, mixed, sound
local mark, moved = redis.call('HGET', KEYS[1], 'moving'), 0
if (mark and mark:sub(1, 36) or '') ~= ARGV[4] then
  return { now, mark and 'moving' or 'open', -1 }
end
local why = ARGV[6] == 'list' and mixed(KEYS[3])
if why then
  return { now, why, 0 }
elseif ARGV[6] ~= '' then
  redis.call('SCARD', KEYS[7])
  if ARGV[6] == 'set' then
    sound(3)
  end
end
local crashed = ARGV[5] == 'list' and redis.call('HLEN', KEYS[9]) > 0
local function take(id, entry)
  if ARGV[5] == 'list' then
    local taken = redis.call('LREM', KEYS[2], -1, entry)
    if crashed and taken > 0 then
      redis.call('HDEL', KEYS[9], redis.sha1hex(entry))
    end
    return taken
  elseif ARGV[5] == 'set' then
    return redis.call('ZREM', KEYS[2], entry)
  end
  redis.call('HDEL', KEYS[8], id)
  return redis.call('ZREM', KEYS[2], id)
end
local due = ARGV[7]
local moment = due:sub(1, 1) == '+' and now + tonumber(due:sub(2)) or tonumber(due)
for i = 9, #ARGV, 3 do
  if take(ARGV[i], ARGV[i + 1]) > 0 then
    moved = moved + 1
    if ARGV[4] ~= '' then
      redis.call('SREM', KEYS[4], ARGV[i])
      redis.call('SREM', KEYS[5], ARGV[i])
    elseif ARGV[6] == '' then
      redis.call('SADD', gone(KEYS[1], { KEYS[4], KEYS[5] }, tonumber(ARGV[3])), ARGV[i])
    elseif ARGV[6] == 'list' then
      redis.call('LPUSH', KEYS[3], ARGV[i + 2])
    else
      redis.call('ZADD', KEYS[3], score(KEYS[3], moment), ARGV[i + 2])
    end
  end
end
if moved > 0 and ARGV[6] ~= '' then
  redis.call('SADD', KEYS[7], ARGV[8])
  wake(KEYS[6], ARGV[2])
end
return { now, 'open', moved }
