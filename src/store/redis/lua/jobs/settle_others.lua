#!lua flags=allow-oom
-- settle_others: records outcomes that settle does not, each only if the node still holds the job under its fence.
-- keys: conf running job meta runs scheduled done dead cancelled unique removed[2] idle ready[4] counted_history progress groups deferred job_index
-- args: now channel node remember ending_bytes outcome_codes counter_count counters...
--   remember, ending_bytes, outcome_codes: as for settle
--   counters: counter and how often; then 12 for each outcome: id, held value, outcome, time, ticket of the schedule|'', due|'',
--   counts, run|'', its number, unique key|'', then group, result or deferred kind|'', then kind and error of the group, or
--   when a deferred job was due before|''
-- The run of a k has no number.
-- An outcome is a (ack), k (ack, kept), b (bury), r (retry) or l (release). Its time is how long the job is kept or waits.
-- Returns { now, id of each job that was not held }
-- include read_time, to_digits, parse_int, increment_field, record_fields, complete_ticket, index_terms, index_members
-- include run_limits, add_run, drop_runs, group_counts, log_limits, drop_progress, store_result, rotate_removed, choose_removed
-- include insert_dead, insert_scheduled, deferred_hints, settle_one, push_tickets, wake_node, read_cancel_keep
local first, lost, lost_at, freed, ended, released, times = &counters + 2 * $counter_count, {}, {}, 0, {}, {}, {}
local goes_on, cancelled_bytes, cancelled_at = false, 0, {}
local conf = redis.call('HMGET', @conf, 'format', $node, 'done_retention', 'watched_until', 'bytes')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local held, retention, watched_until, bytes = conf[2], conf[3], conf[4], conf[5]
for at = first, #ARGV, 12 do
  local value = redis.call('HGET', @running, ARGV[at])
  local keep = value and read_cancel_keep(value)
  if (keep and value:sub(1, 65) or value) ~= ARGV[at + 1] then
    lost[#lost + 1], lost_at[#lost_at + 1] = ARGV[at], (at - first) / 12 + 1
  else
    freed = freed + redis.call('HDEL', @running, ARGV[at])
    local again = false
    if keep and ARGV[at + 2] ~= 'a' and ARGV[at + 2] ~= 'k' then
-- include count_event, insert_cancelled, settle_cancelled
      cancelled_bytes = cancelled_bytes + settle_cancelled(at, value)
      cancelled_at[#cancelled_at + 1] = (at - first) / 12 + 1
    else
      again = settle_one(at, released, times)
    end
    goes_on, ended[#ended + 1] = goes_on or again, not again and ARGV[at] or nil
  end
end
push_tickets('LPUSH', released)
write_deferred_hints($channel, $node)
if goes_on then
  wake_node(@idle, $channel)
end
if freed > 0 then
-- include subtract_lost, widen_retention, release_jobs, count_outcomes, publish_completed
  local less, ending = subtract_lost(lost_at, cancelled_at)
  release_jobs(freed, held, bytes, ending + cancelled_bytes, retention, times)
  count_outcomes(first, less)
  publish_completed($channel, watched_until, ended)
end
return { now, unpack(lost) }
