-- read_cancel_keep: returns how long a running job is kept once it is cancelled; nil if it was not cancelled.
-- needs: parse_int
local function read_cancel_keep(held)
  return #held > 65 and parse_int(held:sub(66), 16) or nil
end
