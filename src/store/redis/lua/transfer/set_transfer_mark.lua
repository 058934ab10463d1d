#!lua flags=allow-oom
-- set_transfer_mark: marks a queue as moving to another store on behalf of a mover, or removes its mark.
-- keys: conf idle
-- args: now channel mover target
--   target: '' to remove the mark
-- Returns { now, the mark (mover, the mover that began, target)|'', the last fence|'' }
-- include read_time, check_format, wake_node
local mover, target = $mover, $target
local conf = redis.call('HMGET', @conf, 'transfer_mark', 'fence')
local mark, fence = conf[1] or '', conf[2] or ''
if target ~= '' then
  mark = mover .. (mark == '' and mover .. target or mark:sub(37))
  redis.call('HSET', @conf, 'transfer_mark', mark)
elseif mark:sub(1, 36) == mover then
  mark = ''
  redis.call('HDEL', @conf, 'transfer_mark')
  wake_node(@idle, $channel)
end
return { now, mark, fence }
