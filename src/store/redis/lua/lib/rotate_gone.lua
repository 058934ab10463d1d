-- rotate_gone: returns the set to which ids of gone jobs are added. Once the set is older than `age`, the other one is emptied
-- and takes its place. `half` and `since` are the fields gone_half and gone_since of conf.
local function rotate_gone(age, half, since)
  half, since = half == '2' and 2 or 1, tonumber(since)
  if not since or now - since >= age then
    half = since and 3 - half or half
    redis.call('UNLINK', @gone[half])
    redis.call('HSET', @conf, 'gone_half', half, 'gone_since', now)
  end
  return @gone[half]
end
