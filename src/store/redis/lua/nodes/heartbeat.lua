#!lua flags=allow-oom
-- heartbeat: renews the lease of a node in one queue. Returns what it holds, which other nodes may be dead, and whether to claim.
-- keys: conf running lease since idle nodes scheduled ready[4]
-- args: now node lease info expiring_within
--   info: the lease (16 digits), then what the node says of itself
--   expiring_within: leases of other nodes that end within this time are returned
-- Returns { now, how many jobs it holds, 1 if it should claim, { node, microseconds until its lease ends } of others that hold jobs,
--   deferred_mark (0 if the queue is closed), 1 if the node was not known, { job of this node that was cancelled } }
-- include read_time, to_digits, parse_int, shorten_leases
local SUSPECTS_MAX = 20
local node, lease = $node, tonumber($lease)
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'next_tick', 'deferred_mark', node, 'planned_at',
  'cancelled:' .. node, 'cancel_scan:' .. node)
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local paused, transfer_mark, next_tick, deferred_mark, held = conf[2], conf[3], conf[4], conf[5], conf[6]
local own = tonumber(redis.call('ZSCORE', @lease, node))
local lapsed = not own or own < now
-- A time that is still to come was recorded while the clock was ahead.
if lapsed or (tonumber(redis.call('ZSCORE', @since, node)) or math.huge) > now then
  redis.call('ZADD', @since, now, node)
end
-- A node that was forgotten and has claimed since has a lease, but no info. With new info it keeps the time it joined.
-- Info begins with the lease. An entry without more was written by a claim.
local known = redis.call('HGET', @nodes, node)
if lapsed or not known or known:sub(17) ~= $info then
  redis.call('HSET', @nodes, node, (not lapsed and known and known:sub(1, 16) or to_digits(now)) .. $info)
end
redis.call('ZADD', @lease, now + lease, node)
redis.call('ZADD', @idle, 'XX', now, node)
local others = {}
shorten_leases(@lease, @nodes, lease)
local expiring = redis.call('ZRANGE', @lease, '-inf', now + $expiring_within, 'BYSCORE', 'LIMIT', 0, SUSPECTS_MAX, 'WITHSCORES')
if #expiring > 0 then
-- include count_held, forget_node
  for i = 1, #expiring, 2 do
    local other, ends = expiring[i], tonumber(expiring[i + 1])
    if other ~= node and count_held(@conf, other) > 0 then
      others[#others + 1] = { other, math.max(0, ends - now + 1) }
    elseif other ~= node and ends < now then
      forget_node(other)
    end
  end
end
local cancelled = {}
if conf[8] or conf[9] then
-- include cancelled_limits, list_cancelled
  cancelled = list_cancelled(node, conf[8] or '', conf[9] or nil)
end
local next_due = tonumber(redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2])
local has_work = (next_due and next_due <= now) or redis.call('EXISTS', @ready) > 0
local is_closed, tick = paused or transfer_mark, tonumber(next_tick)
-- If ticks were planned in the future, the clock was set back: a claim has them planned again.
local claims = (tick and tick <= now) or parse_int(conf[7], 16) > now or (has_work and not is_closed)
local mark = is_closed and 0 or parse_int(deferred_mark, 16)
return { now, parse_int(held, 15), claims and 1 or 0, others, mark, known and #known > 32 and 0 or 1, cancelled }
