#!lua flags=allow-oom
-- move_entries: moves entries of one queue from one position to another, each only if it is still there.
-- keys: conf source target removed[2] idle queues job crashes
-- args: now channel remember from to due queue entries...
--   from: list, set or done; to: list, set or '' to delete; due: microseconds, or + and how long|''
--   entries: for each entry: id, entry, new entry
-- Returns { now, 'moving' | 'open' | why not, how many were moved }: a moving queue is changed only by its transfer
-- include read_time, check_format, wake_node, rotate_removed, choose_removed, pick_score, check_entry_list, require_sorted_set
local moved, to = 0, $to
if redis.call('HEXISTS', @conf, 'transfer_mark') == 1 then
  return { now, 'moving', 0 }
end
local why = to == 'list' and check_entry_list(@target)
if why then
  return { now, why, 0 }
elseif to ~= '' then
  redis.call('SCARD', @queues)
  if to == 'set' then
    require_sorted_set(@target)
  end
end
local crashed = $from == 'list' and redis.call('HLEN', @crashes) > 0
local function remove_entry(id, entry)
  if $from == 'list' then
    local removed = redis.call('LREM', @source, -1, entry)
    if crashed and removed > 0 then
      redis.call('HDEL', @crashes, redis.sha1hex(entry))
    end
    return removed
  elseif $from == 'set' then
    return redis.call('ZREM', @source, entry)
  end
  redis.call('HDEL', @job, id)
  return redis.call('ZREM', @source, id)
end
local time = $due:sub(1, 1) == '+' and now + tonumber($due:sub(2)) or tonumber($due)
for i = &entries, #ARGV, 3 do
  if remove_entry(ARGV[i], ARGV[i + 1]) > 0 then
    moved = moved + 1
    if to == '' then
      redis.call('SADD', choose_removed(tonumber($remember)), ARGV[i])
    elseif to == 'list' then
      redis.call('LPUSH', @target, ARGV[i + 2])
    else
      redis.call('ZADD', @target, pick_score(@target, time), ARGV[i + 2])
    end
  end
end
if moved > 0 and to ~= '' then
  redis.call('SADD', @queues, $queue)
  wake_node(@idle, $channel)
end
return { now, 'open', moved }
