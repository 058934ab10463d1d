-- whole: a number that somebody may have damaged, which then counts as 0: a script must not fail half-way.
local function whole(digits, most)
  return digits and #digits <= most and digits:find('^%-?%d+$') and tonumber(digits) or 0
end
