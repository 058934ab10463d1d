-- roll: minutes that are over are added to the totals, which stand beside them and are never swept; some minutes in one step.
-- Returns the last minute that is in the totals, and whether there are more to add.
-- A push counts by the time that its process knows of: a minute is over when the one after it is.
local AFTER, MINUTES, NUMBERS = 2, 60, 62

-- The numbers of a minute, or of the totals.
local function numbers_of(history, of)
  local fields = {}
  for place = 1, NUMBERS do
    fields[place] = string.format('%s.%02d', of, place - 1)
  end
  return redis.call('HMGET', history, unpack(fields))
end

local function add_up(sums, numbers)
  for place = 1, NUMBERS do
    sums[place] = (sums[place] or 0) + math.max(0, whole(numbers[place], 15))
  end
end

-- The minute before the first that was counted, or `last`: for a queue of which none is in the totals yet.
local function before_all(history, last)
  for _, field in ipairs(redis.call('HKEYS', history)) do
    last = math.min(last, (tonumber(field:match('^(%d+)%.')) or math.huge) - 1)
  end
  return last
end

local function roll(history, conf)
  local last, sums = math.floor(now / 60000000) - AFTER, {}
  local rolled = tonumber(redis.call('HGET', conf, 'rolled')) or before_all(history, last)
  local stop = math.min(last, rolled + MINUTES)
  for minute = rolled + 1, stop do
    add_up(sums, numbers_of(history, string.format('%.0f', minute)))
  end
  for place, sum in ipairs(sums) do
    if sum > 0 then
      add(history, string.format('total.%02d', place - 1), sum)
    end
  end
  if stop > rolled then
    redis.call('HSET', conf, 'rolled', string.format('%.0f', stop))
  end
  return math.max(stop, rolled), stop < last
end
