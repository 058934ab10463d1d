-- gone: the younger of the two sets of remembered ids; when it is over age, the older one is emptied and takes its place.
local function gone(conf, halves, age)
  local state = redis.call('HMGET', conf, 'half', 'since')
  local half, since = state[1] == '2' and 2 or 1, tonumber(state[2])
  if not since or now - since >= age then
    half = since and 3 - half or half
    redis.call('UNLINK', halves[half])
    redis.call('HSET', conf, 'half', half, 'since', now)
  end
  return halves[half]
end
