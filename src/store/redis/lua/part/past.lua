-- forget_past: deletes minutes that are older than a day and in the totals, ten at most in one step.
local DAY, PLACES, STEP = 1440, 62, 10
local function forget_past(history, conf, rolled)
  local last = math.floor(now / 60000000) - DAY
  local known = tonumber(redis.call('HGET', conf, 'swept'))
  local swept = known or before_all(history, last)
  local stop = math.min(last, swept + STEP, rolled)
  for minute = swept + 1, stop do
    local fields = {}
    for place = 1, PLACES do
      fields[place] = string.format('%.0f.%02d', minute, place - 1)
    end
    redis.call('HDEL', history, unpack(fields))
  end
  -- Once it is noted nobody needs to go through all fields again.
  if stop > swept or not known then
    redis.call('HSET', conf, 'swept', math.max(stop, swept))
  end
end
