#!lua
-- set_connections: records connections that a node holds, and deletes others of the node.
-- keys: presence connections
-- args: now node lease held_count names...
--   names: the held connections, then the others
-- Returns { now }
-- include read_time
local node, pairs_of, last = $node, {}, &names - 1 + $held_count
for n = &names, last do
  pairs_of[#pairs_of + 1] = ARGV[n]
  pairs_of[#pairs_of + 1] = node
end
if #pairs_of > 0 then
  redis.call('ZADD', @presence, 'GT', now + $lease, node)
  redis.call('HSET', @connections, unpack(pairs_of))
end
for n = last + 1, #ARGV do
  if redis.call('HGET', @connections, ARGV[n]) == node then
    redis.call('HDEL', @connections, ARGV[n])
  end
end
return { now }
