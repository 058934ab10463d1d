#!lua flags=no-writes
-- completed_among: returns which of some jobs are done, dead, cancelled or removed.
-- keys: conf job done dead cancelled
-- args: now ids...
--   ids: at most 500
-- Returns { now, { id } }
-- include read_time, check_format
local completed = {}
if #$ids == 0 then
  return { now, completed }
end
local done = redis.call('ZMSCORE', @done, $ids)
local dead = redis.call('ZMSCORE', @dead, $ids)
local cancelled = redis.call('ZMSCORE', @cancelled, $ids)
for i = 1, #$ids do
  if done[i] or dead[i] or cancelled[i] or redis.call('HEXISTS', @job, $ids[i]) == 0 then
    completed[#completed + 1] = $ids[i]
  end
end
return { now, completed }
