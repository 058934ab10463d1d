#!lua flags=allow-oom
-- beat: a node's sign of life in one queue; also tells it what it holds, who may be dead, and whether there is anything to do.
-- KEYS 1 conf 2 lease 3 since 4 idle 5 nodes 6 due 7-10 ready
-- ARGV 1 now|'' 2 node 3 lease 4 about the node 5 how soon a lease must end to be told
-- Returns { now, holds, anything(1|0), { node, microseconds until its lease ends } of others that hold something,
--      the mark of the last put-off, 0 if nothing is claimed, 1: the node was not known }
-- include now, text, closed, whole, holds, dismiss
local SUSPECTS = 20
local node, lease = ARGV[2], tonumber(ARGV[3])
local own = tonumber(redis.call('ZSCORE', KEYS[2], node))
local lapsed = not own or own < now
if lapsed then
  redis.call('ZADD', KEYS[3], now, node)
end
-- One that was dismissed and has claimed since has a lease, but its name is gone. One that says something new has joined before.
local named = redis.call('HGET', KEYS[5], node)
if lapsed or not named or named:sub(17) ~= ARGV[4] then
  redis.call('HSET', KEYS[5], node, (not lapsed and named and named:sub(1, 16) or text(now)) .. ARGV[4])
end
redis.call('ZADD', KEYS[2], now + lease, node)
redis.call('ZADD', KEYS[4], 'XX', now, node)
local others = {}
local ending = redis.call('ZRANGE', KEYS[2], '-inf', now + ARGV[5], 'BYSCORE', 'LIMIT', 0, SUSPECTS, 'WITHSCORES')
for i = 1, #ending, 2 do
  local other, ends = ending[i], tonumber(ending[i + 1])
  local holds = holds_of(KEYS[1], other)
  if other ~= node and holds > 0 then
    others[#others + 1] = { other, math.max(0, ends - now + 1) }
  elseif other ~= node and ends < now then
    dismiss(other)
  end
end
local next_due = tonumber(redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2])
local any = (next_due and next_due <= now) or redis.call('EXISTS', KEYS[7], KEYS[8], KEYS[9], KEYS[10]) > 0
local conf, is_closed = redis.call('HMGET', KEYS[1], 'tick', 'put_offs'), closed(KEYS[1])
local tick = tonumber(conf[1])
local look = (tick and tick <= now) or (any and not is_closed)
return { now, holds_of(KEYS[1], node), look and 1 or 0, others, is_closed and 0 or whole(conf[2], 16), named and 0 or 1 }
