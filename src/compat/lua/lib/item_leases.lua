-- item_leases: reads, ends and replaces the leases of items in a sorted set of due times.
-- A lease is fence, end, length (16 digits each), the score that the set has, a space, the score that it had before.
-- needs: to_digits
-- functions: to_score, read_lease, write_lease, is_untouched, end_lease, insert_item, insert_next
local scale = tonumber($scale)

local function to_score(time)
  return string.format(scale == 1000 and '%.3f' or '%.6f', time / scale)
end

local function read_lease(id)
  local lease = redis.call('HGET', @leases, id)
  if not lease then
    return nil
  end
  local score, first = lease:match('^(%S+) (%S+)$', 49)
  local ends, length = tonumber(lease:sub(17, 32)) or 0, tonumber(lease:sub(33, 48)) or 0
  return { fence = lease:sub(1, 16), ends = ends, length = length, score = score, first = first }
end

-- Gives an id a lease from now on. Its end is the score.
local function write_lease(id, fence, length, first)
  local score = to_score(now + length)
  redis.call('ZADD', @set, 'XX', score, id)
  redis.call('HSET', @leases, id, fence .. to_digits(now + length) .. to_digits(length) .. score .. ' ' .. first)
  redis.call('ZADD', @lease_ends, now + length, id)
end

-- Returns whether the score of an id is the one of its lease, and the score. If not, a client without leases has changed it.
local function is_untouched(id, lease)
  local score = redis.call('ZSCORE', @set, id)
  return score and tonumber(score) == tonumber(lease.score), score
end

local function end_lease(id)
  redis.call('HDEL', @leases, id)
  redis.call('ZREM', @lease_ends, id)
end

-- Adds an id. If it is the first now, clients that wait are woken.
local function insert_item(id, score)
  redis.call('ZADD', @set, score, id)
  if redis.call('ZRANGE', @set, 0, 0)[1] == id then
    -- pcall: all writes are done. A user without the right to publish must not make the script fail.
    redis.pcall('PUBLISH', $channel, '')
  end
end

-- Adds the next occurrence of an id, if one was requested while it ran. Returns whether there was one.
local function insert_next(id)
  local score = redis.call('HGET', @next, id)
  redis.call('HDEL', @next, id)
  redis.call('HDEL', @attempts, id)
  if score then
    insert_item(id, score)
  end
  return score
end
