#!lua flags=allow-oom
-- cancel: ends a job that waits. Marks a running job, so that it ends with its attempt, and notifies its node.
-- keys: conf running job meta scheduled done dead cancelled unique stale ready[4] counted_history job_index
-- args: now channel id keep
--   keep: how long the cancelled job is kept
-- Returns { now, 'cancelled' | 'done' | 'dead' | 'moving' | 'not_found' | 'cancelling', node that holds it }
-- include read_time, check_format, increment_field, to_digits, record_fields, make_tickets, read_state, index_terms, index_members
-- include remove_waiting, count_event, insert_cancelled, publish_completed
local id, keep = $id, math.min(tonumber($keep), 4000000000000000)
local record, held = redis.call('HGET', @job, id), redis.call('HGET', @running, id)
if not record then
  return { now, 'not_found' }
end
if held then
  local node = held:sub(1, 36)
  -- An earlier mark stays.
  if #held <= 65 then
    redis.call('HSET', @running, id, string.format('%-65s', held) .. to_digits(keep))
  end
-- include cancelled_limits, note_cancelled
  note_cancelled(node, id)
  -- pcall: all writes are done. A user without the right to publish must not make the script fail.
  redis.pcall('SPUBLISH', $channel .. node, 'heartbeat')
  return { now, 'cancelling', node }
end
local meta = redis.call('HGET', @meta, id)
local state = read_state(id, record, meta)
if state == 'd' or state == 'b' then
  return { now, state == 'd' and 'done' or 'dead' }
end
if state == 'c' then
  return { now, 'cancelled' }
end
local conf = redis.call('HMGET', @conf, 'transfer_mark', 'watched_until')
if conf[1] then
  return { now, 'moving' }
end
remove_waiting(id, record, meta)
increment_field(@conf, 'bytes', -args_bytes(record))
insert_cancelled(id, record, meta, keep)
publish_completed($channel, conf[2], { id })
return { now, 'cancelled' }
