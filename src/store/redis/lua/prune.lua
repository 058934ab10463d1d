#!lua flags=allow-oom
-- prune: deletes ended jobs past their time, then done ones beyond the newest, in one bounded step.
-- KEYS 1 conf 2 job 3 meta 4 errors 5 done 6 dead 7,8 gone 9 history 10 notes 11 groups 12 find
-- ARGV 1 now|'' 2 age of remembered ids 3 most done jobs 4 most to delete
-- Returns { now, how many }
-- include now, whole, add, text, gone, read, history, notes, group, roll, past, words, find
forget_past(KEYS[9], KEYS[1], (roll(KEYS[9], KEYS[1])))
local most = tonumber(ARGV[4])
local done = redis.call('ZRANGE', KEYS[5], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
local dead = redis.call('ZRANGE', KEYS[6], '-inf', now, 'BYSCORE', 'LIMIT', 0, most - #done)
local beyond = redis.call('ZCARD', KEYS[5]) - #done - tonumber(ARGV[3])
beyond = math.min(beyond, most - #done - #dead)
if beyond > 0 then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[5], #done, #done + beyond - 1)) do
    done[#done + 1] = id
  end
end
if #done > 0 then
  redis.call('ZREM', KEYS[5], unpack(done))
end
if #dead > 0 then
  redis.call('ZREM', KEYS[6], unpack(dead))
end
if redis.call('EXISTS', KEYS[5]) == 0 then
  redis.call('HDEL', KEYS[1], 'kept')
end
-- Also when there is nothing to delete: what is remembered must be forgotten some day.
local remembered = gone(KEYS[1], { KEYS[7], KEYS[8] }, tonumber(ARGV[2]))
local ids, first_dead, members = done, #done + 1, {}
for _, id in ipairs(dead) do
  ids[#ids + 1] = id
end
if #ids == 0 then
  return { now, 0 }
end
local metas = redis.call('HMGET', KEYS[3], unpack(ids))
for i, id in ipairs(ids) do
  if metas[i] then
    if i >= first_dead then
      words_dead(members, id, metas[i])
    end
    leave_group(KEYS[11], metas[i])
    drop_history(KEYS[4], id, metas[i])
    redis.call('HDEL', KEYS[3], id)
  end
end
drop_words(members)
redis.call('HDEL', KEYS[2], unpack(ids))
drop_notes(KEYS[10], ids)
redis.call('SADD', remembered, unpack(ids))
return { now, #ids }
