#!lua flags=no-writes
-- counts: returns what one queue has. Waiting and dead entries are in sets that all queues share.
-- keys: conf list done
-- args: now
-- Returns { now, paused(1|0), transfer mark|'', ready, running, done, { node that holds entries }, the entry that waits longest|'' }
-- include read_time, check_format, parse_int
local all = redis.call('HGETALL', @conf)
local paused, moving, running, nodes = 0, '', 0, {}
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  if field == 'paused' then
    paused = 1
  elseif field == 'transfer_mark' then
    moving = value
  elseif #field == 36 and parse_int(value, 15) > 0 then
    running = running + parse_int(value, 15)
    nodes[#nodes + 1] = field
  end
end
local first = redis.call('LINDEX', @list, -1) or ''
return { now, paused, moving, redis.call('LLEN', @list), running, redis.call('ZCARD', @done), nodes, first }
