-- text: a moment or a fence as 16 digits; Lua's own conversion would lose digits.
local function text(number)
  return string.format('%016.0f', number)
end
