#!lua flags=no-writes
-- tokens: returns all tokens.
-- keys: tokens
-- args: now
-- Returns { now, { name, token, ... } }
-- include read_time
return { now, redis.call('HGETALL', @tokens) }
