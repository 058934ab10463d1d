#!lua flags=allow-oom
-- register: puts names of queues where others find it; also when memory is full, so that workers can come and drain them.
-- KEYS 1 queues
-- ARGV 1 now|'' 2... queues
-- Returns { now }
-- include now
redis.call('SADD', KEYS[1], unpack(ARGV, 2))
return { now }
