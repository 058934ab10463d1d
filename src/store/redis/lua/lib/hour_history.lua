-- hour_history: adds complete minutes to hours. An hour is a field of its own hash, with the counters that are not zero.
-- functions: add_to_hour
-- needs: merge_counters
local HOURS = 720

-- Deletes the hours that are too old, or further in the future than those that are kept: the clock was wrong.
local function drop_hours(hour)
  for _, field in ipairs(redis.call('HKEYS', @history_hours)) do
    local found = tonumber(field) or 0
    if found <= hour - HOURS or found > hour + HOURS then
      redis.call('HDEL', @history_hours, field)
    end
  end
end

-- Adds these sums, one per counter, to an hour.
local function add_to_hour(hour, sums)
  local counters = {}
  for counter, sum in ipairs(sums) do
    if sum > 0 then
      counters[#counters + 1] = string.format('%02d%.0f ', counter - 1, sum)
    end
  end
  if #counters == 0 then
    return
  end
  local field = string.format('%.0f', hour)
  local before = redis.call('HGET', @history_hours, field)
  redis.call('HSET', @history_hours, field, merge_counters(before or '', table.concat(counters)))
  if not before then
    drop_hours(math.floor(now / 3600000000))
  end
end
