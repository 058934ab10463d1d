#!lua flags=allow-oom
-- settle: ends or extends a lease, only for the client that has it.
-- A lease whose time is over still counts if no client has taken the id since.
-- keys: set leases lease_ends next attempts
-- args: now scale channel id fence outcome duration
--   outcome: done, extend or retry
-- Returns { now, 0: not held any more | 1: applied | 2: done, and its next occurrence waits }
-- include read_time, to_digits, item_leases
local id, outcome, duration = $id, $outcome, tonumber($duration)
local lease = read_lease(id)
if not lease or lease.fence ~= $fence then
  return { now, 0 }
end
local same, score = is_untouched(id, lease)
if not same and lease.ends <= now then
  -- A client without leases has the id now.
  end_lease(id)
  return { now, 0 }
end
if not score and outcome ~= 'done' then
  -- The id was removed.
  end_lease(id)
  insert_next(id)
  return { now, 0 }
end
if outcome == 'extend' then
  if not same then
    redis.call('HSET', @next, id, score)
  end
  write_lease(id, lease.fence, duration, lease.first)
  return { now, 1 }
end
end_lease(id)
if outcome == 'retry' then
  -- If the id was added again while it ran, the sooner of both times counts.
  local at = to_score(now + duration)
  insert_item(id, not same and tonumber(score) < tonumber(at) and score or at)
  return { now, 1 }
end
if same then
  redis.call('ZREM', @set, id)
elseif score then
  -- The id was added again while it ran: the sooner of two next occurrences counts.
  local next_score = redis.call('HGET', @next, id)
  if not next_score or tonumber(score) < tonumber(next_score) then
    redis.call('HSET', @next, id, score)
  end
end
return { now, insert_next(id) and 2 or 1 }
