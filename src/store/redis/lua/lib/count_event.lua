-- count_event: adds to a counter (two digits) of the current minute. A key that ends in '-' keeps no history.
-- needs: increment_field
local function count_event(history, counter, times)
  if history:byte(-1) ~= 45 then
    increment_field(history, string.format('%d.', math.floor(now / 60000000)) .. counter, times)
  end
end
