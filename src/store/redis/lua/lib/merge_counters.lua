-- merge_counters: returns the sum of two texts of counters: for each counter its number (two digits), its count, a space.
local function merge_counters(before, more)
  local counts, counters = {}, {}
  for counter, count in (before .. more):gmatch('(%d%d)(%d+) ') do
    if not counts[counter] then
      counters[#counters + 1] = counter
    end
    counts[counter] = (counts[counter] or 0) + tonumber(count)
  end
  for i, counter in ipairs(counters) do
    counters[i] = counter .. string.format('%.0f ', counts[counter])
  end
  return table.concat(counters)
end
