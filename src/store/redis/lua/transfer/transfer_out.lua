#!lua flags=allow-oom
-- transfer_out: deletes jobs that are in another store now. Their ids are not remembered, because they may come back.
-- keys: conf running job meta runs scheduled done dead cancelled unique stale ready[4] progress groups job_index
-- args: now mover jobs...
--   jobs: for each job: id, time of its push
-- Returns { now, how many were deleted | -1 if the queue has no mark of this mover }
-- include read_time, check_format, increment_field, to_digits, record_fields, make_tickets, index_terms, index_members, remove_waiting
-- include run_limits, drop_runs, sweep_stale, log_limits, drop_progress, group_counts, remove_dead, erase_job
local NEAR = 1000
local PUSHED, UNIQUE = '^' .. FIELD:rep(2) .. '(%d*)', '^' .. FIELD:rep(7) .. '([^\t\n]*)'
local conf = redis.call('HMGET', @conf, 'transfer_mark', 'has_stale')
if (conf[1] or ''):sub(1, 36) ~= $mover then
  return { now, -1 }
end

-- A job that would be claimed next is near the head of its list, where it is found at once.
local function remove_near_head(id, record, meta)
  local ready_ticket, due_ticket = make_tickets(id, record, meta)
  local list = @ready[read_priority(record) + 1]
  if remove_scheduled(due_ticket) then
    return
  end
  if redis.call('LPOS', list, ready_ticket, 'MAXLEN', NEAR) then
    redis.call('LREM', list, 1, ready_ticket)
  else
    mark_stale(list, ready_ticket)
  end
end

if conf[2] then
  sweep_stale(NEAR)
end
local deleted = 0
for n = &jobs, #ARGV, 2 do
  local id = ARGV[n]
  local record = redis.call('HGET', @job, id)
  if record and record:match(PUSHED) == ARGV[n + 1] and redis.call('HEXISTS', @running, id) == 0 then
    local meta, unique_key = redis.call('HGET', @meta, id), record:match(UNIQUE) or ''
    local was_done = redis.call('ZREM', @done, id) + redis.call('ZREM', @cancelled, id) > 0
    if not remove_dead(id, meta) and not was_done then
      remove_near_head(id, record, meta)
      increment_field(@conf, 'bytes', -args_bytes(record))
    end
    drop_progress({ id })
    erase_job(id, meta, unique_key)
    deleted = deleted + 1
  end
end
return { now, deleted }
