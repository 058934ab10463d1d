-- happened: counts what has happened in this minute, each by its place in a tally (two digits) and how often.
local function happened(history, place, times)
  add(history, string.format('%.0f.', math.floor(now / 60000000)) .. place, times)
end
