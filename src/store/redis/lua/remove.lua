#!lua flags=allow-oom
-- remove: deletes a job that is not running; its id stays remembered.
-- KEYS 1 conf 2 held 3 job 4 meta 5 errors 6 due 7 done 8 dead 9 unique 10,11 gone 12 stale 13-16 ready 17 notes 18 groups 19 find
-- ARGV 1 now|'' 2 id 3 age of remembered ids 4 unique key|'' 5 the state it must be in: s|r|d|b|'' 6 channel
-- Returns { now, 'gone' | 'running' | 'moving' | 'changed' | 'none' }
-- include now, add, text, gone, read, ticket, words, find, unseat, history, notes, group, unbury, erase, ended
local id, key = ARGV[2], ARGV[4]
local record = redis.call('HGET', KEYS[3], id)
if not record then
  return { now, 'none' }
end
if redis.call('HEXISTS', KEYS[2], id) == 1 then
  return { now, 'running' }
end
local conf = redis.call('HMGET', KEYS[1], 'moving', 'waited')
if conf[1] then
  return { now, 'moving' }
end
local meta = redis.call('HGET', KEYS[4], id)
local state = state_of(KEYS[6], KEYS[7], KEYS[8], id, record, meta)
if ARGV[5] ~= '' and ARGV[5] ~= state then
  return { now, 'changed' }
end
if state == 'd' then
  redis.call('ZREM', KEYS[7], id)
elseif state == 'b' then
  unbury(KEYS[8], KEYS[18], id, meta)
else
  unseat(KEYS[6], KEYS[12], KEYS[1], 13, id, record, meta)
  add(KEYS[1], 'bytes', -bytes_of(record))
end
drop_notes(KEYS[17], { id })
erase(id, meta, key)
redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[3])), id)
tell_ended(ARGV[6], conf[2], { id })
return { now, 'gone' }
