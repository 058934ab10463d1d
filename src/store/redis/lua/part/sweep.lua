-- sweep: lets go of stale tickets at the heads of the ready lists, so that nobody has to look past them again and again.
-- KEYS 1 conf 10 stale 11-14 ready
local NEAR = 1000

local function sweep()
  for lane = 11, 14 do
    local head, swept = redis.call('LRANGE', KEYS[lane], 0, NEAR - 1), 0
    -- Of two tickets that are the same only the first can be stale.
    for _, ticket in ipairs(head) do
      if redis.call('SREM', KEYS[10], ticket) == 0 then
        break
      end
      swept = swept + 1
    end
    if swept > 0 then
      redis.call('LTRIM', KEYS[lane], swept, -1)
    end
  end
  if redis.call('EXISTS', KEYS[10]) == 0 then
    redis.call('HDEL', KEYS[1], 'stale')
  end
end
