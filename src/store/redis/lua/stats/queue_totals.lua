#!lua flags=allow-oom
-- queue_totals: returns the counters of a queue since it exists, and adds complete minutes to its totals.
-- keys: conf history history_hours
-- args: now
-- Returns { now, 1 if there are more minutes to add: send it again, { 63 counters } }
-- include read_time, check_format, parse_int, increment_field, merge_counters, hour_history, history_minutes, sum_history
local summed, more = sum_history()
local sums = {}
add_counters(sums, read_counters('total'))
for minute = summed + 1, math.min(math.floor(now / 60000000), summed + MINUTES) do
  add_counters(sums, read_counters(string.format('%.0f', minute)))
end
for counter, sum in ipairs(sums) do
  sums[counter] = string.format('%.0f', sum)
end
return { now, more and 1 or 0, sums }
