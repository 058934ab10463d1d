#!lua flags=allow-oom
-- register: puts the name of a queue where others find it; also when memory is full, so that workers can come and drain it.
-- KEYS 1 queues
-- ARGV 1 now|'' 2 queue
-- Returns { now }
-- include now
redis.call('SADD', KEYS[1], ARGV[2])
return { now }
