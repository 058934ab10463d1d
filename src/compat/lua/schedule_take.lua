#!lua flags=allow-oom
-- schedule_take: takes ids that are due, those first that have been due longest, and leases them.
-- The score becomes the end of the lease, so that workers who know only the set leave it alone as well.
-- KEYS as in part/schedule
-- ARGV 1 now|'' 2 scale 3 channel 4 most to take 5 lease 6 most times an id is taken
-- Returns { now, { id }, { fence }, { first due, microseconds }, { which time this is }, when the next one is due|'' }
-- include now, text, schedule
local most, lease_for, tries_max = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local LOOK = 200

-- Leases that are over: their ids are due again since they first were, so that a backlog does not starve them.
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK)) do
  local lease = lease_of(id)
  local same, score = false, nil
  if lease then
    same, score = untouched(id, lease)
  end
  end_lease(id)
  if same then
    redis.call('ZADD', KEYS[1], lease.first, id)
  elseif not score then
    put_next(id)
  end
end

local ids, fences, firsts, times = {}, {}, {}, {}
local fence = math.max((tonumber(redis.call('HGET', KEYS[7], 'fence')) or 0) + 1, now)
local due = redis.call('ZRANGE', KEYS[1], '-inf', score_of(now), 'BYSCORE', 'LIMIT', 0, most + LOOK, 'WITHSCORES')
local ends = score_of(now + lease_for)
for i = 1, #due, 2 do
  local id, score = due[i], due[i + 1]
  local lease = lease_of(id)
  local tries = (tonumber(redis.call('HGET', KEYS[5], id)) or 0) + 1
  if lease and lease.ends > now then
    -- It was put there again while it runs, by somebody who knows nothing of leases: that is its next occurrence.
    redis.call('HSET', KEYS[4], id, score)
    redis.call('ZADD', KEYS[1], lease.score, id)
  elseif lease then
    -- One of very many leases that are over: the next step comes to it.
  elseif tries > tries_max then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HSET', KEYS[6], id, text(now) .. ' ' .. (tries - 1))
    put_next(id)
  elseif #ids < most then
    local at = #ids + 1
    ids[at], fences[at], times[at] = id, text(fence + at - 1), tries
    firsts[at] = string.format('%.0f', score * scale)
    redis.call('ZADD', KEYS[1], 'XX', ends, id)
    redis.call('HSET', KEYS[2], id, fences[at] .. text(now + lease_for) .. ends .. ' ' .. score)
    redis.call('ZADD', KEYS[3], now + lease_for, id)
    redis.call('HSET', KEYS[5], id, tries)
  end
end
if #ids > 0 then
  redis.call('HSET', KEYS[7], 'fence', fences[#ids])
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return { now, ids, fences, firsts, times, first and string.format('%.0f', first * scale) or '' }
