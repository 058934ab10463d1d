#!lua flags=allow-oom
-- promote: moves due entries of one queue from a sorted set to the queue, each only if it is still there.
-- keys: conf source queues list idle
-- args: now channel queue entries...
--   entries: each as it is in the set, and as it will be in the queue
-- Returns { now, why not|'', how many were moved }
-- include read_time, check_format, wake_node, check_entry_list
local why = check_entry_list(@list)
if why then
  return { now, why, 0 }
end
redis.call('SCARD', @queues)
local moved = 0
for i = &entries, #ARGV, 2 do
  if redis.call('ZREM', @source, ARGV[i]) == 1 then
    redis.call('LPUSH', @list, ARGV[i + 1])
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('SADD', @queues, $queue)
  wake_node(@idle, $channel)
end
return { now, '', moved }
