#!lua flags=allow-oom
-- redis_in_action_bury: takes what nobody can read out of the delayed or out of a list, and keeps it as a dead job.
-- KEYS 1 where it is 2 job 3 meta 4 errors 5 dead 6 groups 7 find
-- ARGV 1 now|'' 2 delayed|list 3 how long it is kept 4 counts 5... item, id, record, failure, group, what
--      the group is of each
-- Returns { now, how many were buried }
-- include now, text, read, group, words, find
local buried = 0
for n = 5, #ARGV, 6 do
  local item, id = ARGV[n], ARGV[n + 1]
  local there
  if ARGV[2] == 'delayed' then
    there = redis.call('ZREM', KEYS[1], item)
  else
    there = redis.call('LREM', KEYS[1], 1, item)
  end
  if there == 1 then
    redis.call('HSET', KEYS[2], id, ARGV[n + 2])
    local group = join_group(KEYS[6], ARGV[n + 4], text(now), ARGV[n + 5])
    local meta = text(now) .. text(now) .. ARGV[4] .. group .. words_of(ARGV[n + 2])
    redis.call('HSET', KEYS[3], id, meta)
    redis.call('HSET', KEYS[4], id .. '1', text(now) .. ARGV[n + 3])
    bury(KEYS[5], now + ARGV[3], id, meta)
    buried = buried + 1
  end
end
return { now, buried }
