-- widen_retention: returns the field done_retention of conf if these times are beyond it, else nil. The field has the shortest
-- and the longest time that done jobs of the queue are kept (16 digits each), so that a search by the time of completion
-- knows until when such jobs are kept.
-- needs: to_digits, parse_int
local function widen_retention(known, times)
  if #times == 0 then
    return nil
  end
  local least, longest = times[1], times[1]
  for i = 2, #times do
    least, longest = math.min(least, times[i]), math.max(longest, times[i])
  end
  if known and #known == 32 then
    local low, high = parse_int(known:sub(1, 16), 16), parse_int(known:sub(17), 16)
    if low <= least and high >= longest then
      return nil
    end
    least, longest = math.min(low, least), math.max(high, longest)
  end
  return to_digits(least) .. to_digits(longest)
end
