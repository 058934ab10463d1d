#!lua flags=allow-oom
-- prune: deletes done, dead and cancelled jobs past their retention, then done ones beyond the newest. One call deletes a bounded number.
-- keys: conf job meta runs done dead cancelled removed[2] history history_hours progress groups job_index
-- args: now remember max_done max_deleted
-- Returns { now, how many were deleted }
-- include read_time, check_format, parse_int, increment_field, to_digits, rotate_removed, choose_removed, record_fields, run_limits
-- include drop_runs, log_limits, drop_progress, group_counts, merge_counters, hour_history, history_minutes, sum_history, prune_history, index_terms, index_members
prune_history((sum_history()))
local max = tonumber($max_deleted)
local done = redis.call('ZRANGE', @done, '-inf', now, 'BYSCORE', 'LIMIT', 0, max)
local dead = redis.call('ZRANGE', @dead, '-inf', now, 'BYSCORE', 'LIMIT', 0, max - #done)
local cancelled = redis.call('ZRANGE', @cancelled, '-inf', now, 'BYSCORE', 'LIMIT', 0, max - #done - #dead)
local beyond = redis.call('ZCARD', @done) - #done - tonumber($max_done)
beyond = math.min(beyond, max - #done - #dead - #cancelled)
if beyond > 0 then
  for _, id in ipairs(redis.call('ZRANGE', @done, #done, #done + beyond - 1)) do
    done[#done + 1] = id
  end
end
if #done > 0 then
  redis.call('ZREM', @done, unpack(done))
end
if #dead > 0 then
  redis.call('ZREM', @dead, unpack(dead))
end
for _, id in ipairs(cancelled) do
  redis.call('ZREM', @cancelled, id)
  done[#done + 1] = id
end
if redis.call('EXISTS', @done) == 0 then
  redis.call('HDEL', @conf, 'done_retention')
end
-- Also if there is nothing to delete: remembered ids must be forgotten in time.
local removed = choose_removed(tonumber($remember))
local ids, first_dead, members = done, #done + 1, {}
for _, id in ipairs(dead) do
  ids[#ids + 1] = id
end
if #ids == 0 then
  return { now, 0 }
end
local metas = redis.call('HMGET', @meta, unpack(ids))
for i, id in ipairs(ids) do
  if metas[i] then
    if i >= first_dead then
      add_dead_terms(members, id, metas[i])
    end
    leave_group(metas[i])
    redis.call('HDEL', @meta, id)
  end
end
drop_from_index(members)
drop_runs(ids, metas)
redis.call('HDEL', @job, unpack(ids))
drop_progress(ids)
redis.call('SADD', removed, unpack(ids))
return { now, #ids }
