-- prune_history: deletes minutes that are older than a day and in the totals, at most ten in one call.
-- needs: sum_history
local DAY, COUNTERS, STEP = 1440, 62, 10
local function prune_history(summed)
  local last = math.floor(now / 60000000) - DAY
  local known = tonumber(redis.call('HGET', @conf, 'pruned_minute'))
  local pruned = known or minute_before_first(last)
  local stop = math.min(last, pruned + STEP, summed)
  for minute = pruned + 1, stop do
    local fields = {}
    for counter = 1, COUNTERS do
      fields[counter] = string.format('%.0f.%02d', minute, counter - 1)
    end
    redis.call('HDEL', @history, unpack(fields))
  end
  -- With the field, the next call need not read all fields of the history again.
  if stop > pruned or not known then
    redis.call('HSET', @conf, 'pruned_minute', math.max(stop, pruned))
  end
end
