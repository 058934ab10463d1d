-- sweep_stale: removes stale tickets at the heads of the ready lists, so that later calls need not look past them.
local function sweep_stale(near)
  for list = 1, 4 do
    local head, swept = redis.call('LRANGE', @ready[list], 0, near - 1), 0
    -- Only the first of two equal tickets can be stale.
    for _, ticket in ipairs(head) do
      if redis.call('SREM', @stale, ticket) == 0 then
        break
      end
      swept = swept + 1
    end
    if swept > 0 then
      redis.call('LTRIM', @ready[list], swept, -1)
    end
  end
  if redis.call('EXISTS', @stale) == 0 then
    redis.call('HDEL', @conf, 'has_stale')
  end
end
