-- holds: how many jobs a node holds, as conf says.
local function holds_of(conf, node)
  return whole(redis.call('HGET', conf, node), 15)
end

-- Returns how many are left.
local function holds_fewer(conf, node, fewer)
  local left = holds_of(conf, node) - fewer
  redis.call('HSET', conf, node, left)
  return left
end
