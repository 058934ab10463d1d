-- kept: conf says how long done jobs of the queue are kept, at least and at most (16 digits each), so that whoever looks for those
-- that ended at some time knows until when they are kept.
local least, longest
local function keeps(time)
  least, longest = math.min(least or time, time), math.max(longest or time, time)
end

-- Conf with a wider range, if what was said here is beyond.
local function widened(told)
  local low, high = whole(told and told:sub(1, 16), 16), whole(told and told:sub(17), 16)
  if not least or (told and #told == 32 and low <= least and high >= longest) then
    return nil
  end
  local known = told and #told == 32
  return text(math.min(known and low or least, least)) .. text(math.max(known and high or longest, longest))
end

local function tell_kept(conf)
  local kept = widened(redis.call('HGET', conf, 'kept'))
  if kept then
    redis.call('HSET', conf, 'kept', kept)
  end
end
