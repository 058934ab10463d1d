#!lua flags=allow-oom
-- schedule_remove: an id is not there any more, also if it runs; its next occurrence neither.
-- KEYS as in part/schedule
-- ARGV 1 now|'' 2 scale 3 channel 4 id
-- Returns { now, 1: it was there | 0 }
-- include now, schedule
local id = ARGV[4]
local was = redis.call('ZREM', KEYS[1], id) + redis.call('HDEL', KEYS[4], id) + redis.call('HDEL', KEYS[6], id)
end_lease(id)
redis.call('HDEL', KEYS[5], id)
return { now, was > 0 and 1 or 0 }
