#!lua flags=allow-oom
-- set_transfer_mark: marks a queue as moving to another store on behalf of a transfer, or removes its mark.
-- keys: conf idle
-- args: now channel transfer_id target
--   target: '' to remove the mark
-- Returns { now, the mark (transfer, the transfer that began, target)|'', the last fence|'' }
-- include read_time, check_format, wake_node
local transfer_id, target = $transfer_id, $target
local conf = redis.call('HMGET', @conf, 'moving', 'fence')
local mark, fence = conf[1] or '', conf[2] or ''
if target ~= '' then
  mark = transfer_id .. (mark == '' and transfer_id .. target or mark:sub(37))
  redis.call('HSET', @conf, 'moving', mark)
elseif mark:sub(1, 36) == transfer_id then
  mark = ''
  redis.call('HDEL', @conf, 'moving')
  wake_node(@idle, $channel)
end
return { now, mark, fence }
