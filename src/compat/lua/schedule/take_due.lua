#!lua flags=allow-oom
-- take_due: leases due ids, those first that have been due longest.
-- The score becomes the end of the lease, so that workers that know only the set leave the id alone too.
-- keys: set leases lease_ends next attempts dead conf
-- args: now scale channel max_ids lease max_attempts
-- Returns { now, { id }, { fence }, { first due, microseconds }, { number of this attempt }, when the next one is due|'' }
-- include read_time, to_digits, item_leases, shorten_item_leases
local max, lease_for, max_attempts = tonumber($max_ids), tonumber($lease), tonumber($max_attempts)
local SCAN_MAX = 200
shorten_item_leases(lease_for)

-- Ids whose lease is over are due again with their first score, so that a backlog does not starve them.
for _, id in ipairs(redis.call('ZRANGE', @lease_ends, '-inf', now, 'BYSCORE', 'LIMIT', 0, SCAN_MAX)) do
  local lease = read_lease(id)
  local same, score = false, nil
  if lease then
    same, score = is_untouched(id, lease)
  end
  end_lease(id)
  if same then
    redis.call('ZADD', @set, lease.first, id)
  elseif not score then
    insert_next(id)
  end
end

local ids, fences, firsts, attempts = {}, {}, {}, {}
local fence = math.max((tonumber(redis.call('HGET', @conf, 'fence')) or 0) + 1, now)
local due = redis.call('ZRANGE', @set, '-inf', to_score(now), 'BYSCORE', 'LIMIT', 0, max + SCAN_MAX, 'WITHSCORES')
for i = 1, #due, 2 do
  local id, score = due[i], due[i + 1]
  local lease = read_lease(id)
  local attempt = (tonumber(redis.call('HGET', @attempts, id)) or 0) + 1
  if lease and lease.ends > now then
    -- A client without leases has added the id while it runs: that is its next occurrence.
    redis.call('HSET', @next, id, score)
    redis.call('ZADD', @set, lease.score, id)
  elseif lease then
    -- One of very many leases that are over: the next call handles it.
  elseif attempt > max_attempts then
    redis.call('ZREM', @set, id)
    redis.call('HSET', @dead, id, to_digits(now) .. ' ' .. (attempt - 1))
    insert_next(id)
  elseif #ids < max then
    local at = #ids + 1
    ids[at], fences[at], attempts[at] = id, to_digits(fence + at - 1), attempt
    firsts[at] = string.format('%.0f', score * scale)
    write_lease(id, fences[at], lease_for, score)
    redis.call('HSET', @attempts, id, attempt)
  end
end
if #ids > 0 then
  redis.call('HSET', @conf, 'fence', fences[#ids])
end
local first = redis.call('ZRANGE', @set, 0, 0, 'WITHSCORES')[2]
return { now, ids, fences, firsts, attempts, first and string.format('%.0f', first * scale) or '' }
