-- choose_removed: the same as rotate_removed for a script that has not read conf.
-- needs: rotate_removed
local function choose_removed(age)
  return rotate_removed(age, unpack(redis.call('HMGET', @conf, 'removed_half', 'removed_since')))
end
