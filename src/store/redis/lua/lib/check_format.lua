-- check_format: ends the script before its first write if a newer duly has changed the format of the queue.
-- Hot scripts read the field in an HMGET that they need anyway, and make the same reply.
do
  local format = redis.call('HGET', @conf, 'format')
  if format and format ~= '1' then
    return redis.error_reply('FORMAT ' .. format .. ' ' .. @conf)
  end
end
