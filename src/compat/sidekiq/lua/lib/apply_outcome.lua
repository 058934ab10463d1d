-- apply_outcome: one function per outcome of a held entry. Each returns how much it adds to the counts of processed and failed.
-- needs: pick_score, bury_entry, wake_node
local apply_outcome = {}

local function forget_crashes(entry)
  redis.call('HDEL', @crashes, redis.sha1hex(entry))
end

function apply_outcome.a(entry)
  forget_crashes(entry)
  return { 1, 0 }
end

function apply_outcome.k(entry, keep, _, id)
  forget_crashes(entry)
  redis.call('HSET', @job, id, entry)
  redis.call('ZADD', @done, now + keep, id)
  return { 1, 0 }
end

function apply_outcome.b(entry, _, new)
  forget_crashes(entry)
  bury_entry(new)
  return { 1, 1 }
end

function apply_outcome.d(entry)
  forget_crashes(entry)
  return { 1, 1 }
end

function apply_outcome.r(entry, after, new)
  forget_crashes(entry)
  redis.call('ZADD', @retry, pick_score(@retry, now + after), new)
  return { 1, 1 }
end

function apply_outcome.l(entry)
  local kind = redis.call('TYPE', @list).ok
  if kind == 'list' or kind == 'none' then
    redis.call('RPUSH', @list, entry)
  else
    -- Another client has written a value of another type there. The entry goes back once that is gone.
    redis.call('ZADD', @schedule, pick_score(@schedule, now), entry)
  end
  wake_node(@idle, $channel)
  return { 0, 0 }
end

function apply_outcome.w(entry, after, new)
  if new ~= entry then
    forget_crashes(entry)
  end
  redis.call('ZADD', @schedule, pick_score(@schedule, now + after), new)
  return { 0, 0 }
end
