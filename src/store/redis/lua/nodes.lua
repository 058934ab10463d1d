#!lua flags=no-writes
-- nodes: everybody who works a queue.
-- KEYS 1 conf 2 lease 3 nodes
-- ARGV 1 now|''
-- Returns { now, { node, about, when its lease ends, holds } }
-- include now
local nodes = {}
local about = redis.call('HGETALL', KEYS[3])
for i = 1, #about, 2 do
  local node = about[i]
  local ends = redis.call('ZSCORE', KEYS[2], node) or '0'
  nodes[#nodes + 1] = { node, about[i + 1], ends, redis.call('HGET', KEYS[1], node) or '0' }
end
return { now, nodes }
