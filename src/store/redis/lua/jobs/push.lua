#!lua
-- push: inserts jobs into one queue that have new ids and no unique key.
-- keys: conf job scheduled idle ready[4] running stale counted_history job_index
-- args: now channel ready_counts[4] scheduled_count args_bytes jobs...
--   jobs: for each job, ready ones first, by priority: id, record; the ids of the ready ones; for each scheduled job: due, ticket
-- Returns { now, {}, {}, 1 if the queue has a capacity, 1 if an idle node was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include read_time, increment_field, count_event
local conf = redis.call('HMGET', @conf, 'format', 'capacity_jobs', 'capacity_bytes', 'bytes')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local max_jobs, max_bytes, bytes = conf[2], conf[3], conf[4]
local ready, scheduled = $ready_counts[1] + $ready_counts[2] + $ready_counts[3] + $ready_counts[4], tonumber($scheduled_count)
local jobs, tickets_at, has_capacity, woken = ready + scheduled, &jobs + 2 * (ready + scheduled), 0, 0
if max_jobs or max_bytes then
-- include check_capacity
  local full = check_capacity(max_jobs, max_bytes, bytes, jobs, tonumber($args_bytes))
  if full then
    return full
  end
  has_capacity = 1
end
-- include insert_ready
insert_ready(tickets_at)
local wakes = ready > 0
if scheduled > 0 then
  -- Only this branch needs these parts, so only this branch creates their functions.
-- include to_digits, index_terms, index_members, insert_later
  wakes = insert_later(tickets_at + ready, #ARGV) or wakes
end
increment_field(@conf, 'bytes', $args_bytes)
count_event(@counted_history, '00', jobs)
if wakes then
-- include wake_node
  woken = wake_node(@idle, $channel)
end
return { now, {}, {}, has_capacity, woken }
