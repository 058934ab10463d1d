-- holds: how many jobs a node holds, as conf says. What somebody has damaged counts as 0.
local function whole(digits, most)
  return digits and #digits <= most and digits:match('^%-?%d+$') and tonumber(digits) or 0
end

local function holds_of(conf, node)
  return whole(redis.call('HGET', conf, node), 15)
end

-- Returns how many are left, and until when somebody waits for jobs of the queue, which stands beside it.
local function holds_fewer(conf, node, fewer)
  local state = redis.call('HMGET', conf, node, 'waited')
  local left = whole(state[1], 15) - fewer
  redis.call('HSET', conf, node, left)
  return left, state[2]
end
