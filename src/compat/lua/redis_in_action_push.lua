#!lua
-- redis_in_action_push: puts items into one queue of Redis in Action, or among those that are delayed.
-- KEYS 1 delayed 2 list 3 Sidekiq's queues 4 idle 5 conf 6,7 gone 8 job
-- ARGV 1 now|'' 2 channel 3 queue 4 age of remembered ids 5... item, due ('' is now, 'n' microseconds, '+n' from now), id|'' if it is fresh
-- Returns { now, why not|'', { 1: new | 0: it is there already, or was } }
-- include now, wake, gone, mixed
local why = mixed(KEYS[2], KEYS[3], ARGV[3])
if why then
  return { now, why, {} }
end
local answers, sooner = {}, false
local first = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]) or math.huge
for n = 5, #ARGV, 3 do
  local item, due, id = ARGV[n], ARGV[n + 1], ARGV[n + 2]
  local known = 0
  if id ~= '' then
    known = redis.call('HEXISTS', KEYS[8], id) + redis.call('SISMEMBER', KEYS[6], id) + redis.call('SISMEMBER', KEYS[7], id)
  end
  answers[#answers + 1] = known == 0 and 1 or 0
  if known == 0 then
    local at = tonumber(due) or now
    at = due:byte(1) == 43 and now + at or at
    if at <= now then
      redis.call('RPUSH', KEYS[2], item)
    else
      redis.call('ZADD', KEYS[1], string.format('%.6f', at / 1000000), item)
    end
    sooner = sooner or at <= now or at / 1000000 < first
    if id ~= '' then
      redis.call('SADD', gone(KEYS[5], { KEYS[6], KEYS[7] }, tonumber(ARGV[4])), id)
    end
  end
end
if sooner then
  wake(KEYS[4], ARGV[2])
end
return { now, '', answers }
