#!lua flags=allow-oom
-- set_moving: marks a queue as moving to another store for a mover, or takes its mark away.
-- KEYS 1 conf 2 idle
-- ARGV 1 now|'' 2 channel 3 mover 4 where to|''
-- Returns { now, the mark (mover, who began, where to)|'', the last fence|'' }
-- include now, wake
local mover, to = ARGV[3], ARGV[4]
local conf = redis.call('HMGET', KEYS[1], 'moving', 'fence')
local mark, fence = conf[1] or '', conf[2] or ''
if to ~= '' then
  mark = mover .. (mark == '' and mover .. to or mark:sub(37))
  redis.call('HSET', KEYS[1], 'moving', mark)
elseif mark:sub(1, 36) == mover then
  mark = ''
  redis.call('HDEL', KEYS[1], 'moving')
  wake(KEYS[2], ARGV[2])
end
return { now, mark, fence }
