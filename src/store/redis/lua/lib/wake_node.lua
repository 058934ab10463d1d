-- wake_node: tells one idle node to claim, and skips nodes that no longer listen. Returns 1 if a node was woken, else 0.
local function wake_node(idle, channel, message)
  for _ = 1, 3 do
    local node = redis.call('ZPOPMAX', idle)[1]
    if not node then
      return 0
    end
    -- pcall: all writes are done. A user without the right to publish must not make the script fail.
    if (tonumber(redis.pcall('SPUBLISH', channel .. node, message or '')) or 0) > 0 then
      return 1
    end
  end
  return 0
end
