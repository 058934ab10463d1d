-- wake: tells one idle node to look, and passes over those that no longer listen. Returns 1 if one was told, else 0.
local function wake(idle, channel, message)
  for _ = 1, 3 do
    local node = redis.call('ZPOPMAX', idle)[1]
    if not node then
      return 0
    end
    -- Who may not speak here has done all else: a script must not fail half-way.
    if (tonumber(redis.pcall('SPUBLISH', channel .. node, message or '')) or 0) > 0 then
      return 1
    end
  end
  return 0
end
