-- sum_history: adds the counters of past minutes to the totals, which are in the same hash and are never pruned. One call adds
-- a bounded number of minutes.
-- A push counts by the time that its process knows: a minute is complete once the next one is over.
-- needs: parse_int, increment_field
local AFTER, MINUTES, COUNTERS = 2, 60, 62

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

-- Returns the minute before the first that was counted, or `last`: for a queue that has no totals yet.
local function minute_before_first(last)
  for _, field in ipairs(redis.call('HKEYS', @history)) do
    last = math.min(last, (tonumber(field:match('^(%d+)%.')) or math.huge) - 1)
  end
  return last
end

-- Returns the last minute that is in the totals, and whether there are more to add.
local function sum_history()
  local last, sums = math.floor(now / 60000000) - AFTER, {}
  local summed = tonumber(redis.call('HGET', @conf, 'totals_minute')) or minute_before_first(last)
  local stop = math.min(last, summed + MINUTES)
  for minute = summed + 1, stop do
    add_counters(sums, read_counters(string.format('%.0f', minute)))
  end
  for counter, sum in ipairs(sums) do
    if sum > 0 then
      increment_field(@history, string.format('total.%02d', counter - 1), sum)
    end
  end
  if stop > summed then
    redis.call('HSET', @conf, 'totals_minute', string.format('%.0f', stop))
  end
  return math.max(stop, summed), stop < last
end
