-- history_minutes: finds minutes of the history, whatever the clock was when they were counted.
-- functions: minute_before_next, add_later_minutes
-- needs: parse_int, increment_field

-- Returns the minute before the first one after `minute` that has counters, or `last` if there is none up to there.
local function minute_before_next(minute, last)
  for _, field in ipairs(redis.call('HKEYS', @history)) do
    local found = tonumber(field:match('^(%d+)%.')) or math.huge
    last = found > minute and math.min(last, found - 1) or last
  end
  return last
end

-- Moves the counters of minutes after `minute` to the totals, which have those up to `summed` already.
local function add_later_minutes(minute, summed)
  for _, field in ipairs(redis.call('HKEYS', @history)) do
    local found, counter = field:match('^(%d+)%.(%d%d)$')
    if found and tonumber(found) > minute then
      local count = tonumber(found) > summed and parse_int(redis.call('HGET', @history, field), 15) or 0
      if count > 0 then
        increment_field(@history, 'total.' .. counter, count)
      end
      redis.call('HDEL', @history, field)
    end
  end
end
