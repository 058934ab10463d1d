#!lua flags=no-writes
-- measure_counts: returns what a queue counts, with a fingerprint that shows whether the queue has changed when it is asked again.
-- keys: conf job running scheduled done dead cancelled removed[2] groups
-- args: now
-- Returns { now, fingerprint, bytes of args, done_retention|'', { group, its value } }
-- include read_time, check_format, fingerprint_queue
local conf = redis.call('HMGET', @conf, 'bytes', 'done_retention')
return { now, fingerprint_queue(), conf[1] or '0', conf[2] or '', redis.call('HGETALL', @groups) }
