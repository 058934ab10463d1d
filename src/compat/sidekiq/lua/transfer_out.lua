#!lua flags=allow-oom
-- transfer_out: deletes reserved entries that another store has now, and puts all other reserved ones back into their positions.
-- keys: conf reserved list schedule retry dead done job removed[2] crashes idle
-- args: now channel mover jobs...
--   jobs: for each job: field, id
-- Returns { now, 'marked' | 'open', how many were deleted, how many stay reserved because the key of the queue is no list }
-- include read_time, check_format, wake_node, require_sorted_set, call_in_chunks
local mark, deleted = redis.call('HGET', @conf, 'transfer_mark') or '', 0
if mark:sub(1, 36) ~= $mover then
  return { now, 'open', 0, 0 }
end
require_sorted_set(@schedule, @retry, @dead)
for i = &jobs, #ARGV, 2 do
  local from, entry = (redis.call('HGET', @reserved, ARGV[i]) or ''):match('^(%a+) %S+ %d+ (.*)$')
  if entry then
    redis.call('HDEL', @reserved, ARGV[i])
    redis.call('SREM', @removed[1], ARGV[i + 1])
    redis.call('SREM', @removed[2], ARGV[i + 1])
    redis.call('HDEL', @crashes, redis.sha1hex(entry))
    if from == 'done' then
      redis.call('HDEL', @job, ARGV[i + 1])
    end
    deleted = deleted + 1
  end
end
local left, back, sets = {}, {}, { schedule = @schedule, retry = @retry, dead = @dead }
-- Entries of the queue stay reserved while its key has a value of another type.
local kind = redis.call('TYPE', @list).ok
local is_list = kind == 'list' or kind == 'none'
local all = redis.call('HGETALL', @reserved)
for i = 1, #all, 2 do
  local from, score, number, entry = all[i + 1]:match('^(%a+) (%S+) (%d+) (.*)$')
  if from == 'list' and is_list then
    left[#left + 1] = { number, entry }
  elseif from == 'done' then
    redis.call('ZADD', @done, score, all[i]:sub(1, 16))
  elseif from ~= 'list' then
    redis.call('ZADD', sets[from], score, entry)
  end
  if from ~= 'list' or is_list then
    back[#back + 1] = all[i]
  end
end
-- The entry that was to be claimed first is put back last, so that it is claimed first again.
table.sort(left, function(a, b) return a[1] > b[1] end)
for _, one in ipairs(left) do
  redis.call('RPUSH', @list, one[2])
end
call_in_chunks('HDEL', @reserved, back)
if #back > 0 then
  wake_node(@idle, $channel)
end
return { now, 'marked', deleted, #all / 2 - #back }
