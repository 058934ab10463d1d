-- What has happened in this minute, each by its place in a tally (two digits).
-- A key that ends in '-' is none: whoever asks keeps no history.
local function has_history(history)
  return history:byte(-1) ~= 45
end

-- How the fields of this minute begin.
local function minute()
  return string.format('%d.', math.floor(now / 60000000))
end

local function happened(history, place, times)
  if has_history(history) then
    add(history, minute() .. place, times)
  end
end
