#!lua flags=no-writes
-- counts: returns what one queue has. Waiting and dead entries are in sets that all queues share.
-- keys: conf list done reserved
-- args: now
-- Returns { now, paused(1|0), transfer mark|'', ready, running, done, { node that holds entries }, the entry that waits longest|'',
-- and how many a transfer has reserved: ready, scheduled, dead, done }
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
-- A key with a value of another type holds no job; the counts of other queues must not fail because of it.
local is_list = redis.call('TYPE', @list).ok == 'list'
local ready, first = is_list and redis.call('LLEN', @list) or 0, is_list and redis.call('LINDEX', @list, -1) or ''
-- A transfer that was interrupted leaves its reserved entries behind, at most one batch.
local reserved = { list = 0, schedule = 0, retry = 0, dead = 0, done = 0 }
for _, value in ipairs(moving ~= '' and redis.call('HVALS', @reserved) or {}) do
  local from = value:match('^%a+') or 'list'
  reserved[from] = (reserved[from] or 0) + 1
end
return { now, paused, moving, ready, running, redis.call('ZCARD', @done), nodes, first,
  reserved.list, reserved.schedule + reserved.retry, reserved.dead, reserved.done }
