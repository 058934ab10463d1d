#!lua flags=allow-oom
-- leave: a node goes; what it still holds can be taken back at once.
-- KEYS 1 conf 2 lease 3 since 4 idle 5 nodes
-- ARGV 1 now|'' 2 channel 3 node
-- Returns { now }
-- include now, wake, whole, holds, dismiss
local node = ARGV[3]
if holds_of(KEYS[1], node) > 0 then
  redis.call('ZADD', KEYS[2], 0, node)
  redis.call('ZREM', KEYS[4], node)
  wake(KEYS[4], ARGV[2], 'beat')
else
  dismiss(node)
end
return { now }
