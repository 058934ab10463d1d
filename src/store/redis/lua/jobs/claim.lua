#!lua flags=allow-oom
-- claim: promotes due jobs, then takes ready jobs for a node.
-- keys: conf lease since nodes running scheduled job meta idle stale ready[4] deferred job_index
-- args: now channel node max_jobs max_promoted lease was_idle max_bytes kinds...
--   was_idle: 1 if the node may be on the idle list; max_bytes: '' is any number; kinds: see find_deferred
-- Returns { now, fence, 1 if there may be more, next due|'', rank among idle nodes, next tick|'', deferred_mark, 1 if all deferred
--   jobs were looked at, { ticket }, { for each job: record, as far as they fit }, { meta of those that have one }|nothing }
-- include read_time, to_digits, parse_int
local node, max = $node, tonumber($max_jobs)
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'has_stale', 'fence', node, 'next_tick', 'deferred_mark', 'planned_at')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local paused, transfer_mark, has_stale, deferred_mark = conf[2], conf[3], conf[4], parse_int(conf[8], 16)
local is_closed, last, held_before = paused or transfer_mark, parse_int(conf[5], 16), parse_int(conf[6], 15)
local next_due = redis.call('ZRANGE', @scheduled, '0', '0', 'WITHSCORES')[2]
local fence, asks = to_digits(math.max(last + 1, now)), not is_closed and #ARGV >= &kinds
local tickets, ids, records, more, rank, held, with_meta, metas, stopped, overdue, unseen = {}, {}, {}, 0, 0
if asks or (not is_closed and next_due and tonumber(next_due) <= now) then
-- include push_tickets, index_terms, index_members, promote_due, find_deferred, adopt_deferred
  overdue = promote_due(tonumber($max_promoted))
  unseen = asks and adopt_deferred(&kinds, max)
  next_due = redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2]
end
if not is_closed then
-- include take_tickets
  tickets, ids, held, with_meta, stopped = take_tickets(node, fence, max, has_stale)
  if $max_bytes ~= '' and #ids > 1 then
-- include return_surplus
    stopped = return_surplus(tickets, ids, held, with_meta, tonumber($max_bytes)) or stopped
  end
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
  -- Perhaps only this node knows of a job that is due before the next heartbeat.
  if (overdue or next_due and next_due - now < $lease / 3 or redis.call('EXISTS', @ready) > 0) and redis.call('EXISTS', @idle) == 1 then
-- include wake_node
    wake_node(@idle, $channel)
  end
end
-- A time that is still to come: the clock was set back since, and no tick can be relied on.
local tick = not transfer_mark and (parse_int(conf[9], 16) > now and to_digits(now) or conf[7]) or ''
return { now, fence, more, next_due or '', rank, tick, deferred_mark, asks and not unseen and 1 or 0, tickets, records, metas }
