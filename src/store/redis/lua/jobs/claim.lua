#!lua flags=allow-oom
-- claim: promotes due jobs, then takes ready jobs for a node.
-- keys: conf lease since running scheduled job meta idle stale ready[4] deferred job_index
-- args: now channel node max_jobs max_promoted lease was_idle kinds...
--   was_idle: 1 if the node may be on the idle list; kinds: those to look for among deferred jobs, '' is any
-- Returns { now, fence, 1 if there may be more, next due|'', rank among idle nodes, next tick|'', deferred_mark, 1 if all deferred
--   jobs were looked at, { ticket }, { record of each, as far as they fit }, { meta of those that have one }|nothing }
-- include read_time, to_digits, parse_int
local node, max = $node, tonumber($max_jobs)
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'has_stale', 'fence', node, 'next_tick', 'deferred_mark')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local paused, transfer_mark, has_stale, next_tick = conf[2], conf[3], conf[4], conf[7]
local is_closed, last, held_before = paused or transfer_mark, parse_int(conf[5], 16), parse_int(conf[6], 15)
local deferred_mark = parse_int(conf[8], 16)
local next_due = redis.call('ZRANGE', @scheduled, '0', '0', 'WITHSCORES')[2]
local fence, asks = to_digits(math.max(last + 1, now)), not is_closed and #ARGV >= &kinds
local overdue, unseen, more, rank, records, metas = false, false, 0, 0, {}, nil
if asks or (not is_closed and next_due and tonumber(next_due) <= now) then
  -- Only this branch needs these parts, so only this branch creates their functions.
-- include push_tickets, index_terms, index_members, promote_due, find_deferred, adopt_deferred
  overdue = promote_due(tonumber($max_promoted))
  unseen = asks and adopt_deferred({ $kinds }, max)
  next_due = redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2]
end
local tickets, ids, held, with_meta, stopped = {}, {}, nil, nil, nil
if not is_closed then
-- include take_tickets
  tickets, ids, held, with_meta, stopped = take_tickets(node, fence, max, has_stale)
end
if #ids > 0 then
-- include read_records
  records = read_records(ids, 262144, 0)
  metas = #with_meta > 0 and redis.call('HMGET', @meta, unpack(with_meta)) or nil
  redis.call('HSET', @running, unpack(held))
  redis.call('HSET', @conf, 'fence', fence, node, held_before + #ids)
  if held_before <= 0 then
-- include ensure_lease
    ensure_lease(node, tonumber($lease))
  end
end
if #ids < max and not overdue and not stopped and not unseen then
  redis.call('ZADD', @idle, now, node)
  rank = redis.call('ZRANK', @idle, node)
else
  if $was_idle == '1' then
    redis.call('ZREM', @idle, node)
  end
  more = 1
  if redis.call('EXISTS', @idle) == 1 and (overdue or redis.call('EXISTS', @ready) > 0) then
-- include wake_node
    wake_node(@idle, $channel)
  end
end
local tick, all_seen = not transfer_mark and next_tick or '', asks and not unseen and 1 or 0
return { now, fence, more, next_due or '', rank, tick, deferred_mark, all_seen, tickets, records, metas }
