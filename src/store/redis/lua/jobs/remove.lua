#!lua flags=allow-oom
-- remove: deletes a job that is not running. Its id stays remembered.
-- keys: conf running job meta failures scheduled done dead unique removed[2] stale ready[4] progress groups job_index
-- args: now id remember unique_key state channel
--   state: the one that the job must be in: s, r, d, b, or '' for any
-- Returns { now, 'applied' | 'running' | 'moving' | 'changed' | 'not_found' }
-- include read_time, check_format, increment_field, to_digits, rotate_removed, choose_removed, record_fields, make_tickets, read_state
-- include index_terms, index_members, remove_waiting, failure_limits, drop_failures, log_limits, drop_progress, group_counts, remove_dead
-- include erase_job, publish_completed
local id = $id
local record = redis.call('HGET', @job, id)
if not record then
  return { now, 'not_found' }
end
if redis.call('HEXISTS', @running, id) == 1 then
  return { now, 'running' }
end
local conf = redis.call('HMGET', @conf, 'transfer_mark', 'watched_until')
if conf[1] then
  return { now, 'moving' }
end
local meta = redis.call('HGET', @meta, id)
local state = read_state(id, record, meta)
if $state ~= '' and $state ~= state then
  return { now, 'changed' }
end
if state == 'd' then
  redis.call('ZREM', @done, id)
elseif state == 'b' then
  remove_dead(id, meta)
else
  remove_waiting(id, record, meta)
  increment_field(@conf, 'bytes', -args_bytes(record))
end
drop_progress({ id })
erase_job(id, meta, $unique_key)
redis.call('SADD', choose_removed(tonumber($remember)), id)
publish_completed($channel, conf[2], { id })
return { now, 'applied' }
