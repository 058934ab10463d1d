-- gone: the younger of the two sets of remembered ids; when it is over age, the older one is emptied and takes its place.
-- Which it is, and since when, conf says as half and since.
local function younger(conf, halves, age, half, since)
  half, since = half == '2' and 2 or 1, tonumber(since)
  if not since or now - since >= age then
    half = since and 3 - half or half
    redis.call('UNLINK', halves[half])
    redis.call('HSET', conf, 'half', half, 'since', now)
  end
  return halves[half]
end

local function gone(conf, halves, age)
  return younger(conf, halves, age, unpack(redis.call('HMGET', conf, 'half', 'since')))
end
