#!lua flags=allow-oom
-- claim: moves what has fallen due to the ready lists, then takes ready jobs for a node.
-- KEYS 1 conf 2 lease 3 since 4 held 5 due 6 job 7 meta 8 idle 9 stale 10-13 ready, most urgent first 14 put_off 15 find
-- ARGV 1 now|'' 2 channel 3 node 4 most to take 5 most to move 6 lease 7 1: the node may be on the idle list
--      8... kinds to look for among what others have put off
-- Returns { now, fence, more, next due|'', rank, next cron tick|'', the mark of the last put-off, 1: all that was put off was
--      looked through, { ticket }, { record of each, as long as they fit in }, { meta of those with one }: only if there are any }
-- include now, text, whole
local node, most = ARGV[3], tonumber(ARGV[4])
local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'stale', 'fence', node, 'tick', 'put_offs')
local closed, stale = conf[1] or conf[2], conf[3]
local last, holds = whole(conf[4], 16), whole(conf[5], 15)
local next_due = redis.call('ZRANGE', KEYS[5], '0', '0', 'WITHSCORES')[2]
local fence = text(math.max(last + 1, now))
-- include take
local overdue, unseen, more, rank, records, metas = false, false, 0, 0, {}, nil
if not closed and (#ARGV > 7 or (next_due and tonumber(next_due) <= now)) then
  -- What only this needs is made only here.
-- include spread, words, find, promote, hints, pick_up
  overdue = promote(tonumber(ARGV[5]))
  unseen = #ARGV > 7 and pick_up(most)
  next_due = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2]
end
local stopped = not closed and take(most, stale) or unseen
if #ids > 0 then
-- include bodies
  records = bodies(KEYS[6], ids, 262144, 0)
  metas = #worried > 0 and redis.call('HMGET', KEYS[7], unpack(worried)) or nil
  redis.call('HSET', KEYS[4], unpack(held))
  redis.call('HSET', KEYS[1], 'fence', fence, node, holds + #ids)
  if holds <= 0 then
-- include hold
    hold(node, holds, tonumber(ARGV[6]))
  end
end
if #ids < most and not overdue and not stopped then
  redis.call('ZADD', KEYS[8], now, node)
  rank = redis.call('ZRANK', KEYS[8], node)
else
  if ARGV[7] == '1' then
    redis.call('ZREM', KEYS[8], node)
  end
  more = 1
  if redis.call('EXISTS', KEYS[8]) == 1 and (overdue or redis.call('EXISTS', KEYS[10], KEYS[11], KEYS[12], KEYS[13]) > 0) then
-- include wake
    wake(KEYS[8], ARGV[2])
  end
end
local tick, through = not conf[2] and conf[6] or '', not closed and not unseen and #ARGV > 7 and 1 or 0
return { now, fence, more, next_due or '', rank, tick, whole(conf[7], 16), through, tickets, records, metas }
