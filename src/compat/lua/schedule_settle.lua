#!lua flags=allow-oom
-- schedule_settle: ends or prolongs a lease, only for who has it.
-- A lease whose time is over still counts if nobody has taken the id since.
-- KEYS as in part/schedule
-- ARGV 1 now|'' 2 scale 3 channel 4 id 5 fence 6 done|extend|retry 7 how long
-- Returns { now, 0: not held any more | 1: so it is | 2: done, and its next occurrence waits }
-- include now, text, schedule
local id, how, span = ARGV[4], ARGV[6], tonumber(ARGV[7])
local lease = lease_of(id)
if not lease or lease.fence ~= ARGV[5] then
  return { now, 0 }
end
local same, score = untouched(id, lease)
if not same and lease.ends <= now then
  -- Somebody who knows nothing of leases has it now.
  end_lease(id)
  return { now, 0 }
end
if not score and how ~= 'done' then
  -- Somebody has removed it.
  end_lease(id)
  put_next(id)
  return { now, 0 }
end
if how == 'extend' then
  local ends = score_of(now + span)
  if not same then
    redis.call('HSET', KEYS[4], id, score)
  end
  redis.call('ZADD', KEYS[1], ends, id)
  redis.call('HSET', KEYS[2], id, lease.fence .. text(now + span) .. ends .. ' ' .. lease.first)
  redis.call('ZADD', KEYS[3], now + span, id)
  return { now, 1 }
end
end_lease(id)
if how == 'retry' then
  -- Put there again while it ran, it is due then or now, whichever is sooner.
  local at = score_of(now + span)
  put(id, not same and tonumber(score) < tonumber(at) and score or at)
  return { now, 1 }
end
if same then
  redis.call('ZREM', KEYS[1], id)
elseif score then
  -- It was put there again while it ran: of two next occurrences the sooner counts.
  local next_score = redis.call('HGET', KEYS[4], id)
  if not next_score or tonumber(score) < tonumber(next_score) then
    redis.call('HSET', KEYS[4], id, score)
  end
end
return { now, put_next(id) and 2 or 1 }
