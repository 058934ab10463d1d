-- set_checkpoint: writes the new checkpoint of a transfer, or deletes it if it is ''.
local function set_checkpoint()
  if $checkpoint == '' then
    redis.call('HDEL', @conf, $field)
  else
    redis.call('HSET', @conf, $field, $checkpoint)
  end
end
