-- sum_history: adds the counters of past minutes to their hours, and to the totals, which are in the same hash and are never pruned. One call
-- adds a bounded number of minutes. A push counts by the time that its process knows: a minute is complete once the next is over.
-- needs: parse_int, increment_field, history_minutes, hour_history
local AFTER, MINUTES, COUNTERS = 2, 60, 63

-- Returns the counters of a minute, or of the totals.
local function read_counters(of)
  local fields = {}
  for counter = 1, COUNTERS do
    fields[counter] = string.format('%s.%02d', of, counter - 1)
  end
  return redis.call('HMGET', @history, unpack(fields))
end

local function add_counters(sums, numbers)
  for counter = 1, COUNTERS do
    sums[counter] = (sums[counter] or 0) + math.max(0, parse_int(numbers[counter], 15))
  end
end

-- Returns the last minute that is in the totals, and whether there are more to add.
local function sum_history()
  local last, sums, total = math.floor(now / 60000000) - AFTER, {}, 0
  local summed = tonumber(redis.call('HGET', @conf, 'totals_minute')) or minute_before_next(-1, last)
  local is_ahead = summed > last + 2 * AFTER
  if is_ahead then
    -- The clock was ahead. What was counted at the present before that is in the totals too, so they go on after it.
    add_later_minutes(last + AFTER, summed)
    summed = last + AFTER
  end
  local stop = math.min(last, summed + MINUTES)
  local hour, in_hour = math.floor((summed + 1) / 60), {}
  for minute = summed + 1, stop do
    if minute % 60 == 0 then
      add_to_hour(hour, in_hour)
      hour, in_hour = minute / 60, {}
    end
    local counters = read_counters(string.format('%.0f', minute))
    add_counters(sums, counters)
    add_counters(in_hour, counters)
  end
  add_to_hour(hour, in_hour)
  for counter, sum in ipairs(sums) do
    if sum > 0 then
      total = total + sum
      increment_field(@history, string.format('total.%02d', counter - 1), sum)
    end
  end
  if stop > summed or is_ahead then
    -- The clock may have been in 1970 when the last minute was added.
    stop = total == 0 and stop < last and minute_before_next(stop, last) or math.max(stop, summed)
    redis.call('HSET', @conf, 'totals_minute', string.format('%.0f', stop))
  end
  return math.max(stop, summed), stop < last
end
