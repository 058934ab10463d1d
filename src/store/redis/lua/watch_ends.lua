#!lua flags=allow-oom
-- watch_ends: for so long from now, jobs of this queue that end are told of.
-- KEYS 1 conf
-- ARGV 1 now|'' 2 how long
-- Returns { now }
-- include now, text
redis.call('HSET', KEYS[1], 'waited', text(now + ARGV[2]))
return { now }
