#!lua
-- transfer_in: inserts jobs of another store into one queue as they are, and changes the checkpoint of the transfer in the same
-- call, all or nothing.
-- keys: conf job scheduled idle ready[4] meta runs done dead cancelled unique removed[2] stale progress groups job_index
-- args: now channel field checkpoint_before checkpoint fence jobs...
--   field: that of the checkpoint in conf; checkpoints: '' is none; jobs: see insert_job
-- Returns { now, 'yes' | 'taken' | 'lost', { id of each job that is known, or whose unique key is taken }, the checkpoint as found|'' }
-- include read_time, check_format, increment_field, to_digits, wake_node, record_fields, parse_int, widen_retention, group_counts
-- include index_terms, index_members, insert_dead, insert_scheduled, insert_job, set_checkpoint
local conf = redis.call('HMGET', @conf, $field, 'fence', 'has_stale', 'done_retention')
local found, fence = conf[1] or '', tonumber(conf[2]) or 0
if found == $checkpoint then
  -- This call was made before. The checkpoint is written again, so that a caller that waits for replicas waits for that write.
  set_checkpoint()
  return { now, 'yes', {}, found }
end
if found ~= $checkpoint_before then
  return { now, 'lost', {}, found }
end
local known, taken, new, at, times = {}, {}, {}, &jobs, {}
while at <= #ARGV do
  local id, unique_key = ARGV[at], ARGV[at + 6]
  local holder = unique_key ~= '' and redis.call('HGET', @unique, unique_key)
  local seen = redis.call('HEXISTS', @job, id) + redis.call('SISMEMBER', @removed[1], id)
  if seen + redis.call('SISMEMBER', @removed[2], id) > 0 then
    known[#known + 1] = id
  elseif holder and redis.call('HEXISTS', @job, holder) == 1 then
    taken[#taken + 1] = id
  else
    new[#new + 1] = at
  end
  at = at + 12 + tonumber(ARGV[at + 7]) + tonumber(ARGV[at + 11])
end
if #taken > 0 then
  return { now, 'taken', taken, found }
end
for _, first in ipairs(new) do
  insert_job(first, conf[3], times)
end
set_checkpoint()
local retention = widen_retention(conf[4], times)
if retention then
  redis.call('HSET', @conf, 'done_retention', retention)
end
if fence < tonumber($fence) then
  redis.call('HSET', @conf, 'fence', $fence)
end
if #new > 0 then
  wake_node(@idle, $channel)
end
return { now, 'yes', known, found }
