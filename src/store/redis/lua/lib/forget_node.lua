-- forget_node: deletes all that a queue knows of a node.
local function forget_node(node)
  redis.call('ZREM', @lease, node)
  redis.call('ZREM', @since, node)
  redis.call('ZREM', @idle, node)
  redis.call('HDEL', @nodes, node)
  redis.call('HDEL', @conf, node, 'cancelled:' .. node, 'cancel_scan:' .. node, 'alone:' .. node)
end
