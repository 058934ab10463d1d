#!lua
-- edit: replaces the record of a job that is not running. With another priority the job goes to the tail of that list.
-- keys: conf running job meta scheduled done dead cancelled stale ready[4] job_index
-- args: now id record_before record
-- Returns { now, 'applied' | 'running' | 'moving' | 'changed' | 'not_found' }
-- include read_time, check_format, increment_field, to_digits, record_fields, make_tickets, read_state, index_terms, index_members
-- include insert_scheduled, remove_waiting, find_changeable
local id = $id
local record, refusal = find_changeable(id)
if not record then
  return refusal
end
if record ~= $record_before then
  return { now, 'changed' }
end
local meta, priority = redis.call('HGET', @meta, id), read_priority($record)
local state = read_state(id, record, meta)
local is_waiting = state == 's' or state == 'r'
if is_waiting and priority ~= read_priority(record) then
  local _, due_ticket = make_tickets(id, record, meta)
  local due = redis.call('ZSCORE', @scheduled, due_ticket)
  remove_waiting(id, record, meta)
  local attempts, crashes, runs, ticket_number, first = 0, 0, 0, 0, to_digits(0)
  if meta then
    attempts, crashes = read_count(meta, 33), read_count(meta, 43)
    runs, ticket_number = read_count(meta, 53), read_count(meta, 63)
    first = meta:match('^' .. ('%d'):rep(16)) or first
  end
  ticket_number = add_one(ticket_number)
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes, runs, ticket_number)
  redis.call('HSET', @meta, id, first .. to_digits(now) .. counts)
  local ticket = id .. string.char(priority + 97) .. ticket_number
  if due then
    insert_scheduled(due, ticket .. ' ' .. read_terms($record))
  else
    redis.call('RPUSH', @ready[priority + 1], ticket)
  end
end
redis.call('HSET', @job, id, $record)
if is_waiting then
  increment_field(@conf, 'bytes', args_bytes($record) - args_bytes(record))
end
return { now, 'applied' }
