#!lua flags=allow-oom
-- settle: records acks of jobs without a meta, a unique key or a result, each only if the node still holds the job under its
-- fence. All other outcomes: settle_others.
-- keys: conf running job runs done removed[2] counted_history progress
-- args: now channel node remember plain_count kept_count ending_bytes outcome_codes counter_count counters...
--   remember: the age of remembered ids; ending_bytes: bytes of args of all these jobs; outcome_codes: see subtract_lost
--   counters: counter and how often; then the ids of plain acks; those of kept acks; how long each of these is kept; then
--   the run of each of these|''; then how many of all these jobs are held under one value, and the value, until all are named
-- Returns { now, id of each job that was not held }
-- include read_time, to_digits, parse_int, increment_field, split_by_holder
local first = &counters + 2 * $counter_count
local conf = redis.call('HMGET', @conf, 'format', $node, 'done_retention', 'watched_until', 'bytes', 'removed_half', 'removed_since')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local held, retention, watched_until, bytes, half, since = conf[2], conf[3], conf[4], conf[5], conf[6], conf[7]
local plain, kept, done, times, acks, lost, lost_at = split_by_holder(first, tonumber($plain_count), tonumber($kept_count))
local freed = 0
if #plain > 0 then
-- include rotate_removed, log_limits, drop_progress
  freed = redis.call('HDEL', @running, unpack(plain))
  redis.call('HDEL', @job, unpack(plain))
  redis.call('SADD', rotate_removed(tonumber($remember), half, since), unpack(plain))
  drop_progress(plain)
end
if #kept > 0 then
  freed = freed + redis.call('HDEL', @running, unpack(kept))
  redis.call('ZADD', @done, unpack(done))
  if #acks > 0 then
    redis.call('HSET', @runs, unpack(acks))
  end
end
if freed > 0 then
  local less, ending = nil, tonumber($ending_bytes)
  if #lost > 0 then
-- include subtract_lost
    less, ending = subtract_lost(lost_at)
  end
-- include widen_retention, release_jobs, count_outcomes
  release_jobs(freed, held, bytes, ending, retention, times)
  count_outcomes(first, less)
  if watched_until then
-- include publish_completed
    publish_completed($channel, watched_until, plain, kept)
  end
end
return { now, unpack(lost) }
