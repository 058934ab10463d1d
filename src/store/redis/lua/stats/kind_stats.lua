#!lua flags=no-writes
-- kind_stats: returns outcomes of attempts by hour and kind.
-- keys: kinds
-- args: now
-- Returns { now, { hour.kind, its counters; hour, how many kinds it has } }
-- include read_time
return { now, redis.call('HGETALL', @kinds) }
