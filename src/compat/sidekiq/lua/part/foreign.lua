-- foreign: whether a list holds JSON arrays at both ends, which is how others than Sidekiq use such a key.
local function foreign(list)
  local last = redis.call('LINDEX', list, -1)
  return last and last:byte() == 91 and redis.call('LINDEX', list, 0):byte() == 91
end
