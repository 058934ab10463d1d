#!lua flags=no-writes
-- measure: what is counted of a queue, with a mark that tells whether it has changed when it is asked again.
-- KEYS 1 conf 2 job 3 held 4 due 5 done 6 dead 7,8 gone 9 groups
-- ARGV 1 now|''
-- Returns { now, mark, bytes of args, how long done jobs are kept|'', { group, what is known of it } }
-- include now, mark
local conf = redis.call('HMGET', KEYS[1], 'bytes', 'kept')
return { now, mark(), conf[1] or '0', conf[2] or '', redis.call('HGETALL', KEYS[9]) }
