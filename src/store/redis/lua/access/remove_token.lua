#!lua flags=allow-oom
-- remove_token: deletes a token.
-- keys: tokens
-- args: now name
-- Returns { now, 1 if there was one, else 0 }
-- include read_time
return { now, redis.call('HDEL', @tokens, $name) }
