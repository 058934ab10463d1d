-- choose_gone: the same as rotate_gone for a script that has not read conf.
-- needs: rotate_gone
local function choose_gone(age)
  return rotate_gone(age, unpack(redis.call('HMGET', @conf, 'gone_half', 'gone_since')))
end
