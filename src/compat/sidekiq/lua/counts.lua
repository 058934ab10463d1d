#!lua flags=no-writes
-- counts: what one queue holds, but for what waits and what is dead: those are in sets that all queues share.
-- KEYS 1 conf 2 queue 3 done
-- ARGV 1 now|''
-- Returns { now, paused(1|0), the mark of a move|'', ready, running, done, { node that holds something },
--   the entry that waits longest|'' }
-- include now, whole
local all = redis.call('HGETALL', KEYS[1])
local paused, moving, running, nodes = 0, '', 0, {}
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  if field == 'paused' then
    paused = 1
  elseif field == 'moving' then
    moving = value
  elseif #field == 36 and whole(value, 15) > 0 then
    running = running + whole(value, 15)
    nodes[#nodes + 1] = field
  end
end
local first = redis.call('LINDEX', KEYS[2], -1) or ''
return { now, paused, moving, redis.call('LLEN', KEYS[2]), running, redis.call('ZCARD', KEYS[3]), nodes, first }
