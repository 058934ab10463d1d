-- dismiss: nothing of this node is left here.
-- KEYS 1 conf 2 lease 3 since 4 idle 5 nodes
local function dismiss(node)
  redis.call('ZREM', KEYS[2], node)
  redis.call('ZREM', KEYS[3], node)
  redis.call('ZREM', KEYS[4], node)
  redis.call('HDEL', KEYS[5], node)
  redis.call('HDEL', KEYS[1], node)
end
