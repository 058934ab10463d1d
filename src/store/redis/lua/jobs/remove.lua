#!lua flags=allow-oom
-- remove: deletes a job that is not running. Its id stays remembered.
-- keys: conf running job meta runs scheduled done dead cancelled unique removed[2] stale ready[4] progress groups job_index
-- args: now id remember unique_key state channel
--   state: the one that the job must be in: s, r, d, b, c, or '' for any
-- Returns { now, 'applied' | 'running' | 'moving' | 'changed' | 'not_found' }
-- include read_time, check_format, increment_field, to_digits, rotate_removed, choose_removed, record_fields, make_tickets, read_state
-- include index_terms, index_members, remove_waiting, run_limits, drop_runs, log_limits, drop_progress, group_counts, remove_dead
-- include erase_job, publish_completed, find_changeable
local id = $id
local record, refusal = find_changeable(id)
if not record then
  return refusal
end
local watched_until = redis.call('HGET', @conf, 'watched_until')
local meta = redis.call('HGET', @meta, id)
local state = read_state(id, record, meta)
if $state ~= '' and $state ~= state then
  return { now, 'changed' }
end
if state == 'd' then
  redis.call('ZREM', @done, id)
elseif state == 'c' then
  redis.call('ZREM', @cancelled, id)
elseif state == 'b' then
  remove_dead(id, meta)
else
  remove_waiting(id, record, meta)
  increment_field(@conf, 'bytes', -args_bytes(record))
end
drop_progress({ id })
erase_job(id, meta, $unique_key)
redis.call('SADD', choose_removed(tonumber($remember)), id)
publish_completed($channel, watched_until, { id })
return { now, 'applied' }
