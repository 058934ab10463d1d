-- shorten_hold: returns a hold of a lock. If it ends later than if it had been extended now, it was extended while the clock was
-- ahead, and gets that end. Its holder does not rely on more.
-- needs: to_digits, parse_int
local function shorten_hold(field, hold)
  local ttl = parse_int(hold:sub(121, 136), 16)
  if ttl <= 0 or (tonumber(hold:sub(1, 16)) or 0) <= now + ttl then
    return hold
  end
  hold = to_digits(now + ttl) .. hold:sub(17)
  redis.call('HSET', @locks, field, hold)
  return hold
end
