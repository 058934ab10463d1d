#!lua flags=no-writes
-- nodes: returns all nodes that work a queue.
-- keys: conf lease nodes
-- args: now
-- Returns { now, { node, info, when its lease ends, how many jobs it holds } }
-- include read_time, check_format
local nodes = {}
local all = redis.call('HGETALL', @nodes)
for i = 1, #all, 2 do
  local node = all[i]
  local ends = redis.call('ZSCORE', @lease, node) or '0'
  nodes[#nodes + 1] = { node, all[i + 1], ends, redis.call('HGET', @conf, node) or '0' }
end
return { now, nodes }
