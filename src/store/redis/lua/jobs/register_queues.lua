#!lua flags=allow-oom
-- register_queues: adds names of queues to the list of all queues. Also if memory is full, so that workers can drain them.
-- keys: queues
-- args: now names...
-- Returns { now }
-- include read_time
redis.call('SADD', @queues, $names)
return { now }
