#!lua
-- push_checked: inserts jobs into one queue, all or none, after a check whether any of them exists.
-- Conflicts are returned before the first write; the caller sends the rest again without them.
-- keys: conf job scheduled idle ready[4] meta runs running unique removed[2] stale counted_history progress job_index
-- args: now channel ready_counts[4] scheduled_count args_bytes jobs...
--   jobs: as for push; then the age of remembered ids; 1 if any id may be known; a number of ids that are only looked up; those
--   ids; then for each job with a unique key: key, id, k (keep the other job) or r (replace it)
-- Returns { now, { for each conflict: id, holder|'' }, { id, replaced id } }, or { now, 'full', jobs|'', bytes|'' }
-- include read_time, increment_field, to_digits, record_fields, make_tickets, index_terms, index_members, find_known, count_event
local conf = redis.call('HMGET', @conf, 'format', 'capacity_jobs', 'capacity_bytes', 'bytes', 'transfer_mark')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local max_jobs, max_bytes, bytes_before, transfer_mark = conf[2], conf[3], conf[4], conf[5]
local ready, scheduled = $ready_counts[1] + $ready_counts[2] + $ready_counts[3] + $ready_counts[4], tonumber($scheduled_count)
local jobs, bytes, tickets_at = ready + scheduled, tonumber($args_bytes), &jobs + 2 * (ready + scheduled)
local rest_at = tickets_at + ready + 2 * scheduled
local unique_at = rest_at + 3 + ARGV[rest_at + 2]
local ids, refused, replaced, old = {}, {}, {}, {}
for n = 1, ARGV[rest_at + 1] == '1' and jobs or 0 do
  ids[n] = ARGV[&jobs + 2 * n - 2]
end
for n = rest_at + 3, unique_at - 1 do
  ids[#ids + 1] = ARGV[n]
end
for _, id in ipairs(find_known(ids)) do
  refused[#refused + 1], refused[#refused + 2] = id, ''
end
for n = unique_at, #ARGV, 3 do
  local holder, id = redis.call('HGET', @unique, ARGV[n]), ARGV[n + 1]
  local record = holder and redis.call('HGET', @job, holder)
  if record and (ARGV[n + 2] == 'k' or transfer_mark or redis.call('HEXISTS', @running, holder) == 1) then
    -- A running job is not replaced, nor one that may be on its way to another store.
    refused[#refused + 1], refused[#refused + 2] = id, holder
  elseif record then
    replaced[#replaced + 1], replaced[#replaced + 2] = id, holder
    old[#old + 1], bytes = { holder, record, redis.call('HGET', @meta, holder) }, bytes - args_bytes(record)
  end
end
if #refused > 0 then
  return { now, refused, {} }
end
-- include check_capacity
local full = (max_jobs or max_bytes) and check_capacity(max_jobs, max_bytes, bytes_before, jobs - #old, bytes)
if full then
  return full
end
-- include remove_waiting, run_limits, drop_runs, log_limits, drop_progress, rotate_removed, choose_removed, publish_completed, drop_replaced, insert_ready, insert_later, wake_node
drop_replaced(old, tonumber(ARGV[rest_at]))
for n = unique_at, #ARGV, 3 do
  redis.call('HSET', @unique, ARGV[n], ARGV[n + 1])
end
insert_ready(tickets_at)
local wakes = scheduled > 0 and insert_later(tickets_at + ready, rest_at - 1)
if ready > 0 or wakes then
  wake_node(@idle, $channel)
end
increment_field(@conf, 'bytes', bytes)
count_event(@counted_history, '00', jobs)
return { now, {}, replaced }
