#!lua flags=no-writes
-- tokens: all tokens.
-- KEYS 1 tokens
-- ARGV 1 now|''
-- Returns { now, { name, record, ... } }
-- include now
return { now, redis.call('HGETALL', KEYS[1]) }
