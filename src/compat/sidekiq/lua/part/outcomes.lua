-- outcomes: what each does with an entry that was held; each answers how many it adds to the counts of processed and failed.
local outcomes = {}

local function forget_crashes(entry)
  redis.call('HDEL', KEYS[7], redis.sha1hex(entry))
end

function outcomes.a(entry)
  forget_crashes(entry)
  return { 1, 0 }
end

function outcomes.k(entry, keep, _, id)
  forget_crashes(entry)
  redis.call('HSET', KEYS[8], id, entry)
  redis.call('ZADD', KEYS[9], now + keep, id)
  return { 1, 0 }
end

function outcomes.b(entry, _, new)
  forget_crashes(entry)
  bury(KEYS[6], new)
  return { 1, 1 }
end

function outcomes.d(entry)
  forget_crashes(entry)
  return { 1, 1 }
end

function outcomes.r(entry, after, new)
  forget_crashes(entry)
  redis.call('ZADD', KEYS[4], score(KEYS[4], now + after), new)
  return { 1, 1 }
end

function outcomes.l(entry)
  local kind = redis.call('TYPE', KEYS[3]).ok
  if kind == 'list' or kind == 'none' then
    redis.call('RPUSH', KEYS[3], entry)
  else
    -- Somebody has put something else there. It goes back when that is gone.
    redis.call('ZADD', KEYS[5], score(KEYS[5], now), entry)
  end
  wake(KEYS[12], ARGV[2])
  return { 0, 0 }
end

function outcomes.w(entry, after, new)
  if new ~= entry then
    forget_crashes(entry)
  end
  redis.call('ZADD', KEYS[5], score(KEYS[5], now + after), new)
  return { 0, 0 }
end
