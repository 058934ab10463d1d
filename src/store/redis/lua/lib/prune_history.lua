-- prune_history: deletes minutes that are older than a day and in the totals, at most ten in one call. Skips minutes without
-- counters.
-- needs: history_minutes, sum_history
local DAY, COUNTERS, STEP = 1440, 63, 10
local function prune_history(summed)
  local last, deleted = math.floor(now / 60000000) - DAY, 0
  local known = tonumber(redis.call('HGET', @conf, 'pruned_minute'))
  -- It is later than `last` if the clock was ahead.
  local pruned = math.min(known or minute_before_next(-1, last), last)
  local stop = math.min(last, pruned + STEP, summed)
  for minute = pruned + 1, stop do
    local fields = {}
    for counter = 1, COUNTERS do
      fields[counter] = string.format('%.0f.%02d', minute, counter - 1)
    end
    deleted = deleted + redis.call('HDEL', @history, unpack(fields))
  end
  if deleted == 0 and stop > pruned and stop < math.min(last, summed) then
    stop = math.min(minute_before_next(stop, last), summed)
  end
  -- With the field, the next call need not read all fields of the history again.
  if stop > pruned or pruned ~= known then
    redis.call('HSET', @conf, 'pruned_minute', math.max(stop, pruned))
  end
end
