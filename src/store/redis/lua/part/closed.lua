-- closed: whether a queue gives nothing, because it is paused or moving to another store.
local function closed(conf)
  local state = redis.call('HMGET', conf, 'paused', 'moving')
  return state[1] or state[2]
end
