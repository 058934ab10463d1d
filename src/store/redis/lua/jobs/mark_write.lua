#!lua flags=allow-oom
-- mark_write: writes a field. Replicas confirm what a connection has written, and the request before this one may have written
-- nothing. Also if memory is full, because many such requests run then too.
-- keys: conf
-- args: now
-- Returns { now }
-- include read_time, check_format
redis.call('HSET', @conf, 'write_mark', '1')
return { now }
