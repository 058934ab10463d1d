#!lua flags=no-writes
-- kinds: what has happened by kind, hour by hour.
-- KEYS 1 kinds
-- ARGV 1 now|''
-- Returns { now, { hour.kind, its numbers; hour, how many kinds it has } }
-- include now
return { now, redis.call('HGETALL', KEYS[1]) }
