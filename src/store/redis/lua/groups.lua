#!lua flags=no-writes
-- groups: all groups of dead jobs of a queue, of which there are at most 1,001.
-- KEYS 1 groups
-- ARGV 1 now|''
-- Returns { now, { group, what is known of it } }
-- include now
return { now, redis.call('HGETALL', KEYS[1]) }
