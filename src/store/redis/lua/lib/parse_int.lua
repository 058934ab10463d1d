-- parse_int: returns the number that a text holds, or 0 if the text is damaged or longer than `max_digits`.
-- A script that failed on damaged data would leave a half-finished change behind.
local function parse_int(digits, max_digits)
  return digits and #digits <= max_digits and digits:find('^%-?%d+$') and tonumber(digits) or 0
end
