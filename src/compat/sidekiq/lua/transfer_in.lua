#!lua
-- transfer_in: inserts jobs of another store into one queue, and changes the checkpoint of the transfer in the same call, all or
-- nothing.
-- keys: conf queues list schedule retry dead job done removed[2] idle
-- args: now channel field checkpoint_before checkpoint fence queue remember jobs...
--   field: that of the checkpoint in conf; checkpoints: '' is none; jobs: for each job: id, list|schedule|retry|dead|done, time, entry
-- Returns { now, 'yes' | 'lost' | why not, { id of each known job }, the checkpoint as found|'' }
-- include read_time, check_format, wake_node, rotate_removed, choose_removed, pick_score, check_entry_list, require_sorted_set
-- include set_checkpoint
local conf = redis.call('HMGET', @conf, $field, 'fence')
local found, fence = conf[1] or '', tonumber(conf[2]) or 0
if found == $checkpoint then
  set_checkpoint()
  return { now, 'yes', {}, found }
elseif found ~= $checkpoint_before then
  return { now, 'lost', {}, found }
end
local why = check_entry_list(@list)
if why then
  return { now, why, {}, found }
end
require_sorted_set(@schedule, @retry, @dead)
redis.call('SCARD', @queues)
local sets, known, removed = { schedule = @schedule, retry = @retry, dead = @dead }, {}, choose_removed(tonumber($remember))
for at = &jobs, #ARGV, 4 do
  local id, position, time, entry = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  if redis.call('SISMEMBER', @removed[1], id) + redis.call('SISMEMBER', @removed[2], id) > 0 then
    known[#known + 1] = id
  else
    redis.call('SADD', removed, id)
    if position == 'list' then
      redis.call('LPUSH', @list, entry)
    elseif position == 'done' then
      redis.call('HSET', @job, id, entry)
      redis.call('ZADD', @done, time, id)
    else
      redis.call('ZADD', sets[position], pick_score(sets[position], time), entry)
    end
  end
end
set_checkpoint()
if fence < tonumber($fence) then
  redis.call('HSET', @conf, 'fence', $fence)
end
if #ARGV >= &jobs then
  redis.call('SADD', @queues, $queue)
  wake_node(@idle, $channel)
end
return { now, 'yes', known, found }
