#!lua
-- push: adds jobs to one queue, each at once or at its time.
-- keys: conf queues list schedule removed[2] idle
-- args: now channel remember queue may_be_known ready_count jobs...
--   jobs: for each ready job: id, entry; then for each scheduled job: id, entry, due (or + and how long)
-- Returns { now, why not|'', { id of each known job } }
-- include read_time, check_format, wake_node, rotate_removed, choose_removed, pick_score, check_entry_list, call_in_chunks
local looks, later_at = $may_be_known == '1', &jobs + 2 * $ready_count
local known, ids, entries, later, same_time = {}, {}, {}, {}, {}
local why = check_entry_list(@list)
if why then
  return { now, why, {} }
end
redis.call('SCARD', @queues)
local first = tonumber(redis.call('ZRANGE', @schedule, 0, 0, 'WITHSCORES')[2]) or math.huge
local function is_new(id)
  if looks and redis.call('SISMEMBER', @removed[1], id) + redis.call('SISMEMBER', @removed[2], id) > 0 then
    known[#known + 1] = id
    return false
  end
  ids[#ids + 1] = id
  return true
end
for at = &jobs, later_at - 1, 2 do
  if is_new(ARGV[at]) then
    entries[#entries + 1] = ARGV[at + 1]
  end
end
for at = later_at, #ARGV, 3 do
  if is_new(ARGV[at]) then
    later[#later + 1] = at
  end
end
if #ids == 0 then
  return { now, '', known }
end
call_in_chunks('SADD', choose_removed(tonumber($remember)), ids)
redis.call('SADD', @queues, $queue)
local wakes = #entries > 0
for _, at in ipairs(later) do
  local due = ARGV[at + 2]
  local time = due:sub(1, 1) == '+' and now + tonumber(due:sub(2)) or tonumber(due)
  local before = same_time[time] or 0
  same_time[time] = before + 1
  local score = pick_score(@schedule, time + before)
  redis.call('ZADD', @schedule, score, ARGV[at + 1])
  wakes = wakes or tonumber(score) < first
end
call_in_chunks('LPUSH', @list, entries)
if wakes then
  wake_node(@idle, $channel)
end
return { now, '', known }
