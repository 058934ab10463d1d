-- wake: tells one idle node to look, and passes over those that no longer listen.
local function wake(idle, channel, message)
  for _ = 1, 3 do
    local node = redis.call('ZPOPMAX', idle)[1]
    if not node or redis.call('SPUBLISH', channel .. node, message or '') > 0 then
      return
    end
  end
end
