#!lua flags=allow-oom
-- remove: deletes a job that is not running; its id stays remembered.
-- KEYS 1 conf 2 held 3 job 4 meta 5 errors 6 due 7 done 8 dead 9 unique 10,11 gone 12 stale 13-16 ready
-- ARGV 1 now|'' 2 id 3 age of remembered ids 4 unique key|''
-- Returns { now, 'gone' | 'running' | 'moving' | 'none' }
-- include now, gone, read, ticket, history, erase
local id, key = ARGV[2], ARGV[4]
local record = redis.call('HGET', KEYS[3], id)
if not record then
  return { now, 'none' }
end
if redis.call('HEXISTS', KEYS[2], id) == 1 then
  return { now, 'running' }
end
if redis.call('HEXISTS', KEYS[1], 'moving') == 1 then
  return { now, 'moving' }
end
local meta = redis.call('HGET', KEYS[4], id)
if redis.call('ZREM', KEYS[7], id) + redis.call('ZREM', KEYS[8], id) == 0 then
  unseat(KEYS[6], KEYS[12], KEYS[1], 13, id, record, meta)
end
erase(id, meta, key)
redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[3])), id)
return { now, 'gone' }
