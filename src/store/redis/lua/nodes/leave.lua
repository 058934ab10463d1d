#!lua flags=allow-oom
-- leave: removes a node from a queue. Jobs that it still holds can be taken back at once.
-- keys: conf lease since idle nodes
-- args: now channel node
-- Returns { now }
-- include read_time, check_format, wake_node, parse_int, count_held, forget_node
local node = $node
if count_held(@conf, node) > 0 then
  redis.call('ZADD', @lease, 0, node)
  redis.call('ZREM', @idle, node)
  wake_node(@idle, $channel, 'heartbeat')
else
  forget_node(node)
end
return { now }
