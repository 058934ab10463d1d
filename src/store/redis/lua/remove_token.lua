#!lua flags=allow-oom
-- remove_token: forgets a token.
-- KEYS 1 tokens
-- ARGV 1 now|'' 2 name
-- Returns { now, 1 if there was one, else 0 }
-- include now
return { now, redis.call('HDEL', KEYS[1], ARGV[2]) }
