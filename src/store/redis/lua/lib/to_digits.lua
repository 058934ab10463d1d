-- to_digits: returns a time or a fence as 16 digits. Lua's own conversion would lose digits.
local function to_digits(number)
  return string.format('%016.0f', number)
end
