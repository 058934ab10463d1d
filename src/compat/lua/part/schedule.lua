-- schedule: what all steps on a sorted set of due moments share.
-- A lease is fence, end (16 digits each), the score under which the set has it, a space, the score it had before.
-- KEYS 1 set 2 leases (hash: id to lease) 3 ends (sorted set: id by the end of its lease) 4 next (hash: id to the score of its next occurrence) 5 tries (hash: id to how often it was taken) 6 dead (hash) 7 conf (hash)
-- ARGV 1 now|'' 2 microseconds per unit of a score 3 channel
local scale = tonumber(ARGV[2])

local function score_of(moment)
  return string.format(scale == 1000 and '%.3f' or '%.6f', moment / scale)
end

local function lease_of(id)
  local lease = redis.call('HGET', KEYS[2], id)
  if not lease then
    return nil
  end
  local score, first = lease:match('^(%S+) (%S+)$', 33)
  return { fence = lease:sub(1, 16), ends = tonumber(lease:sub(17, 32)) or 0, score = score, first = first }
end

-- Whether the set has an id as its lease has left it. If not, somebody has put it there who knows nothing of leases.
local function untouched(id, lease)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and tonumber(score) == tonumber(lease.score), score
end

local function end_lease(id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end

-- Puts an id there; whoever waits looks if it is the first now.
local function put(id, score)
  redis.call('ZADD', KEYS[1], score, id)
  if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == id then
    -- Who may not speak here has done all else: a script must not fail half-way.
    redis.pcall('PUBLISH', ARGV[3], '')
  end
end

-- Its next occurrence, if one was asked for while it ran. Returns whether there was one.
local function put_next(id)
  local score = redis.call('HGET', KEYS[4], id)
  redis.call('HDEL', KEYS[4], id)
  redis.call('HDEL', KEYS[5], id)
  if score then
    put(id, score)
  end
  return score
end
