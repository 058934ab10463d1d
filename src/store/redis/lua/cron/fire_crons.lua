#!lua
-- fire_crons: pushes the jobs of due ticks, and moves each rule on to its next tick in the same call.
-- keys: conf job scheduled idle ready[4] cron ticks running unique removed[2] stale counted_history job_index
-- args: now channel wait fires...
--   wait: how long until a waiting tick is checked again
--   fires: for each rule: name; revision, tick, next and last tick (16 digits, 0: none); n|r|t (the tick waits: never, while the job
--   with its unique key is running, while it is unfinished); number of jobs, and for each job: id, record, due|'', ticket, unique key|''
-- Returns { now, for each rule: { yes|full|waiting|stale, { for each job: id of the job in its way|'' } }, next tick|'' }
-- include read_time, to_digits, parse_int, increment_field, wake_node, record_fields, index_terms, index_members, insert_scheduled, find_known
-- include push_tick_job, set_next_tick, count_event, check_capacity
local conf = redis.call('HMGET', @conf, 'format', 'transfer_mark', 'capacity_jobs', 'capacity_bytes')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local transfer_mark, max_jobs, max_bytes = conf[2], conf[3], conf[4]
local NONE, results, at, pushed = to_digits(0), {}, &fires, 0

-- Returns whether the queue has room for the jobs that begin here. If it is full, the tick goes by.
local function has_room(first, jobs)
  local bytes = 0
  for n = 0, jobs - 1 do
    bytes = bytes + args_bytes(ARGV[first + 1 + 5 * n])
  end
  local has_capacity = jobs > 0 and (max_jobs or max_bytes)
  return not (has_capacity and check_capacity(max_jobs, max_bytes, redis.call('HGET', @conf, 'bytes'), jobs, bytes))
end

while at <= #ARGV do
  local name, revision, tick, next_tick, last, waits, jobs = unpack(ARGV, at, at + 6)
  local rule, result = redis.call('HGET', @cron, name), { 'stale', {} }
  local holder = waits ~= 'n' and jobs ~= '0' and find_unique_holder(ARGV[at + 11])
  if rule and not transfer_mark and rule:sub(2, 33) == revision .. tick and rule:sub(50, 50) == '0' and tonumber(tick) <= now then
    -- With a new revision, a client that has read the rule before cannot store it as it was.
    local changed = rule:sub(1, 1) .. to_digits(tonumber(revision) + 1)
    if holder and (waits == 't' or redis.call('HEXISTS', @running, holder) == 1) then
      result = { 'waiting', { holder } }
      redis.call('HSET', @cron, name, changed .. rule:sub(18, 50) .. '1' .. rule:sub(52))
      redis.call('ZADD', @ticks, now + $wait, name)
    else
      local room = has_room(at + 7, tonumber(jobs))
      result[1], last = room and 'yes' or 'full', last == NONE and rule:sub(34, 49) or last
      for n = 1, room and tonumber(jobs) or 0 do
        result[2][n] = push_tick_job(unpack(ARGV, at + 2 + 5 * n, at + 6 + 5 * n))
        pushed = pushed + (result[2][n] == '' and 1 or 0)
      end
      redis.call('HSET', @cron, name, changed .. next_tick .. last .. '00' .. rule:sub(52))
      if next_tick == NONE then
        redis.call('ZREM', @ticks, name)
      else
        redis.call('ZADD', @ticks, next_tick, name)
      end
    end
  end
  results[#results + 1], at = result, at + 7 + 5 * tonumber(jobs)
end
if pushed > 0 then
  count_event(@counted_history, '00', pushed)
  wake_node(@idle, $channel)
end
return { now, results, set_next_tick() }
