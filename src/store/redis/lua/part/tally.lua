-- happened: counts what has happened in this minute, each by its place in a tally (two digits) and how often.
-- A key that ends in '-' is none: whoever asks keeps no history.
local function happened(history, place, times)
  if history:byte(-1) ~= 45 then
    add(history, string.format('%.0f.', math.floor(now / 60000000)) .. place, times)
  end
end
