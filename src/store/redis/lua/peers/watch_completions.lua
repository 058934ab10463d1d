#!lua flags=allow-oom
-- watch_completions: jobs of this queue that complete are published for this long from now.
-- keys: conf
-- args: now duration
-- Returns { now }
-- include read_time, check_format, to_digits
redis.call('HSET', @conf, 'watched_until', to_digits(now + $duration))
return { now }
