#!lua
-- push: adds items to a queue of Redis in Action, or to its delayed items.
-- keys: delayed list sidekiq_queues idle conf removed[2] job
-- args: now channel queue remember items...
--   items: for each item: item, due ('' is now, 'n' microseconds, '+n' from now), id|'' if it is new
-- Returns { now, why not|'', { 1: new | 0: it exists already, or did } }
-- include read_time, check_format, wake_node, rotate_removed, choose_removed, check_item_list
local why = check_item_list(@list, @sidekiq_queues, $queue)
if why then
  return { now, why, {} }
end
local results, wakes = {}, false
local first = tonumber(redis.call('ZRANGE', @delayed, 0, 0, 'WITHSCORES')[2]) or math.huge
for n = &items, #ARGV, 3 do
  local item, due, id = ARGV[n], ARGV[n + 1], ARGV[n + 2]
  local known = 0
  if id ~= '' then
    known = redis.call('HEXISTS', @job, id) + redis.call('SISMEMBER', @removed[1], id) + redis.call('SISMEMBER', @removed[2], id)
  end
  results[#results + 1] = known == 0 and 1 or 0
  if known == 0 then
    local at = tonumber(due) or now
    at = due:byte(1) == 43 and now + at or at
    if at <= now then
      redis.call('RPUSH', @list, item)
    else
      redis.call('ZADD', @delayed, string.format('%.6f', at / 1000000), item)
    end
    wakes = wakes or at <= now or at / 1000000 < first
    if id ~= '' then
      redis.call('SADD', choose_removed(tonumber($remember)), id)
    end
  end
end
if wakes then
  wake_node(@idle, $channel)
end
return { now, '', results }
