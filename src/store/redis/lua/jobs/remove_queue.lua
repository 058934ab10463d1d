#!lua flags=allow-oom
-- remove_queue: deletes all keys of a queue, unless something keeps it.
-- keys: conf job meta runs scheduled job_index deferred ready[4] stale running done dead cancelled unique removed[2] lease since nodes idle cron ticks history history_hours progress groups
-- args: now only_unused
--   only_unused: 1 also keeps a queue with settings, remembered ids or counters of the last day
-- Returns { now, 0 if it was deleted, 1 without any key; what keeps it: 2 jobs, 3 cron rules, 4 a transfer, 5 settings, 6 activity }
-- include read_time, check_format
local DAY, HOUR, EVENTS = 1440, 60, 6
if redis.call('EXISTS', @job, @running) > 0 then
  return { now, 2 }
end
if redis.call('EXISTS', @cron) > 0 then
  return { now, 3 }
end
for _, field in ipairs(redis.call('HKEYS', @conf)) do
  if field == 'transfer_mark' or string.sub(field, 1, 9) == 'transfer:' then
    return { now, 4 }
  end
end
local function has_settings()
  local settings = redis.call('HMGET', @conf, 'paused', 'capacity_jobs', 'capacity_bytes')
  return settings[1] or settings[2] or settings[3]
end
local function is_active()
  if redis.call('EXISTS', @removed) > 0 then
    return true
  end
  local minute = math.floor(now / 60000000)
  for first = minute - DAY + 1, minute, HOUR do
    local fields = {}
    for at = first, first + HOUR - 1 do
      for counter = 0, EVENTS - 1 do
        fields[#fields + 1] = string.format('%.0f.%02d', at, counter)
      end
    end
    for _, count in ipairs(redis.call('HMGET', @history, unpack(fields))) do
      if count then
        return true
      end
    end
  end
  return false
end
if $only_unused == '1' and has_settings() then
  return { now, 5 }
end
if $only_unused == '1' and is_active() then
  return { now, 6 }
end
local found = redis.call('UNLINK', @conf, @job, @meta, @runs, @scheduled, @job_index, @deferred, @ready, @stale, @running,
  @done, @dead, @cancelled, @unique, @removed, @lease, @since, @nodes, @idle, @cron, @ticks, @history, @history_hours, @progress, @groups)
return { now, found > 0 and 0 or 1 }
