#!lua
-- deliver_to_idle: inserts one new job into a queue. If no other job is ready before it, and an idle node accepts jobs of its
-- kind, the job is delivered to that node: the node holds it from now on, under a fence as if the node had claimed it.
-- keys: conf lease running job idle ready[4] scheduled stale counted_history
-- args: now channel delivery_channel priority id record args_bytes kind
-- Returns { now, 1 if the queue has a capacity, 1 if a node got it or was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include read_time, increment_field, count_event
-- The three nodes that claimed last are tried.
local nodes = redis.call('ZRANGE', @idle, '0', '2', 'REV')
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'capacity_jobs', 'capacity_bytes', 'fence', unpack(nodes))
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local paused, transfer_mark, max_jobs, max_bytes, last_fence = conf[2], conf[3], conf[4], conf[5], conf[6]
local has_capacity, woken, node, fence, held = 0, 1, nil, nil, nil
if max_jobs or max_bytes then
-- include check_capacity
  local full = check_capacity(max_jobs, max_bytes, redis.call('HGET', @conf, 'bytes'), 1, tonumber($args_bytes))
  if full then
    return full
  end
  has_capacity = 1
end
if #nodes > 0 and not paused and not transfer_mark then
-- include parse_int, deliver_to_first_idle
  node, fence, held = deliver_to_first_idle(nodes, last_fence, conf, 6)
end
redis.call('HSET', @job, $id, $record)
if node then
  redis.call('ZREM', @idle, node)
  redis.call('HSET', @running, $id, string.format('%-64s%s', node .. ' ' .. fence, $priority))
  redis.call('HSET', @conf, 'fence', fence, node, held + 1)
else
  redis.call('RPUSH', @ready[$priority + 1], $id)
-- include wake_node
  woken = wake_node(@idle, $channel)
end
increment_field(@conf, 'bytes', $args_bytes)
count_event(@counted_history, '00', '1')
return { now, has_capacity, woken }
