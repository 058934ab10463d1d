#!lua flags=allow-oom
-- seal: writes something, whatever was carried out before it: replicas confirm what a connection has written. Also at full memory,
-- where much of what is sealed runs too.
-- KEYS 1 conf
-- ARGV 1 now|''
-- Returns { now }
-- include now
redis.call('HSET', KEYS[1], 'sealed', '1')
return { now }
