#!lua flags=allow-oom
-- history_hours: returns the counters of some hours, and of the minutes that are not in their hour yet. Adds complete minutes to their hours.
-- keys: conf history history_hours
-- args: now first_ago hours
--   first_ago: how many hours ago the first is; hours: how many
-- Returns { now, 1 if there are more minutes to add: send it again, first hour, first minute, { for each hour: its counters; for each minute:
-- 63 counters } }
-- include read_time, check_format, parse_int, increment_field, merge_counters, hour_history, history_minutes, sum_history
local summed, more = sum_history()
local first, found = math.floor(now / 3600000000) - $first_ago, {}
if not more then
  for hour = first, first + $hours - 1 do
    found[#found + 1] = redis.call('HGET', @history_hours, string.format('%.0f', hour)) or ''
  end
  for minute = summed + 1, math.floor(now / 60000000) do
    local sums = {}
    add_counters(sums, read_counters(string.format('%.0f', minute)))
    for _, sum in ipairs(sums) do
      found[#found + 1] = string.format('%.0f', sum)
    end
  end
end
return { now, more and 1 or 0, string.format('%.0f', first), string.format('%.0f', summed + 1), found }
