-- count_outcomes: adds to the counters of the current minute. From `counters` to before `first` are the counters (two digits
-- each) and how often each is counted; `less` is nil, or how much less by counter because jobs were lost.
-- A key that ends in '-' keeps no history.
-- needs: increment_field
local function count_outcomes(first, less)
  if first == &counters or @counted_history:byte(-1) == 45 then
    return
  end
  local minute = string.format('%d.', math.floor(now / 60000000))
  for at = &counters, first - 1, 2 do
    local counter, times = ARGV[at], ARGV[at + 1]
    times = less and less[counter] and times - less[counter] or times
    if times ~= 0 then
      increment_field(@counted_history, minute .. counter, times)
    end
  end
end
