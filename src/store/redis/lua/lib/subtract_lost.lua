-- subtract_lost: returns how much less is counted, by counter, because of lost jobs, and the bytes of args that end without them.
-- `cancelled_at` is nil, or the jobs that ended cancelled, of which only the outcome is not counted.
-- `outcome_codes` has 14 bytes for each outcome: three counters ('--': none) and its bytes (8 digits).
local function subtract_lost(lost_at, cancelled_at)
  local CODE, less, ending = 14, {}, tonumber($ending_bytes)
  for _, n in ipairs(lost_at) do
    local code = $outcome_codes:sub((n - 1) * CODE + 1, n * CODE)
    for at = 1, 5, 2 do
      local counter = code:sub(at, at + 1)
      less[counter] = (less[counter] or 0) + 1
    end
    ending = ending - (tonumber(code:sub(7)) or 0)
  end
  for _, n in ipairs(cancelled_at or {}) do
    local counter = $outcome_codes:sub((n - 1) * CODE + 1, (n - 1) * CODE + 2)
    less[counter] = (less[counter] or 0) + 1
  end
  return less, ending
end
