-- subtract_lost: returns how much less is counted, by counter, because of lost jobs, and the bytes of args that end without them.
-- `outcome_codes` has 14 bytes for each outcome: three counters ('--': none) and its bytes (8 digits).
local function subtract_lost(lost_at)
  local CODE, less, ending = 14, {}, tonumber($ending_bytes)
  for _, n in ipairs(lost_at) do
    local code = $outcome_codes:sub((n - 1) * CODE + 1, n * CODE)
    for at = 1, 5, 2 do
      local counter = code:sub(at, at + 1)
      less[counter] = (less[counter] or 0) + 1
    end
    ending = ending - (tonumber(code:sub(7)) or 0)
  end
  return less, ending
end
