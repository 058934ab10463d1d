#!lua flags=no-writes
-- dead_groups: returns all groups of dead jobs of a queue, at most 1,001.
-- keys: conf groups
-- args: now
-- Returns { now, { group, its value } }
-- include read_time, check_format
return { now, redis.call('HGETALL', @groups) }
