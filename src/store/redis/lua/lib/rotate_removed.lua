-- rotate_removed: returns the set to which ids of removed jobs are added. Once the set is older than `age`, the other one is emptied
-- and takes its place. `half` and `since` are the fields removed_half and removed_since of conf.
local function rotate_removed(age, half, since)
  half, since = half == '2' and 2 or 1, tonumber(since)
  if not since or now - since >= age then
    half = since and 3 - half or half
    redis.call('UNLINK', @removed[half])
    redis.call('HSET', @conf, 'removed_half', half, 'removed_since', now)
  elseif since > now then
    -- The clock was ahead. Otherwise no id would be forgotten until then.
    redis.call('HSET', @conf, 'removed_since', now)
  end
  return @removed[half]
end
