-- is_closed: returns whether claims from a queue are stopped because it is paused or moving to another store.
local function is_closed(conf)
  local state = redis.call('HMGET', conf, 'paused', 'transfer_mark')
  return state[1] or state[2]
end
