#!lua flags=allow-oom
-- reschedule: gives a job that is not running a new due time. A job that has ended starts over.
-- keys: conf running job meta runs scheduled done dead cancelled unique stale idle ready[4] groups job_index
-- args: now channel id due unique_key state
--   due: microseconds, or + and microseconds from now; state: the one that the job must be in: s, r, d, b, c, or '' for any
-- Returns { now, 'applied' | 'running' | 'moving' | 'changed' | 'not_found' | id of the other job that has the unique key }
-- include read_time, check_format, increment_field, to_digits, wake_node, record_fields, make_tickets, read_state, index_terms
-- include index_members, insert_scheduled, remove_waiting, group_counts, remove_dead, find_changeable, run_limits, add_run, keep_ack
local id, unique_key = $id, $unique_key
local record, refusal = find_changeable(id)
if not record then
  return refusal
end
local meta = redis.call('HGET', @meta, id)
local state = read_state(id, record, meta)
if $state ~= '' and $state ~= state then
  return { now, 'changed' }
end
local has_ended = state == 'd' or state == 'b' or state == 'c'
local holder = has_ended and unique_key ~= '' and redis.call('HGET', @unique, unique_key)
if holder and redis.call('HEXISTS', @job, holder) == 1 then
  return { now, holder }
end
local attempts, crashes, runs, ticket_number = 0, 0, 0, 0
if meta then
  runs, ticket_number = read_count(meta, 53), read_count(meta, 63)
end
if meta then
  attempts, crashes = read_count(meta, 33), read_count(meta, 43)
end
if has_ended then
  if keep_ack(id, add_one(runs), add_one(attempts)) then
    runs = add_one(runs)
  end
  attempts, crashes = 0, 0
  redis.call('ZREM', @done, id)
  redis.call('ZREM', @cancelled, id)
  remove_dead(id, meta)
  increment_field(@conf, 'bytes', args_bytes(record))
  if unique_key ~= '' then
    redis.call('HSET', @unique, unique_key, id)
  end
else
  remove_waiting(id, record, meta)
end
local due, priority = tonumber($due) + ($due:byte(1) == 43 and now or 0), read_priority(record)
ticket_number = add_one(ticket_number)
local counts = string.format('%010d%010d%010d%010d', attempts, crashes, runs, ticket_number)
redis.call('HSET', @meta, id, to_digits(math.max(due, now)) .. to_digits(now) .. counts)
local ticket = id .. string.char(priority + 97) .. ticket_number
if due > now then
  insert_scheduled(due, ticket .. ' ' .. read_terms(record))
else
  redis.call('RPUSH', @ready[priority + 1], ticket)
end
wake_node(@idle, $channel)
return { now, 'applied' }
