#!lua flags=allow-oom
-- set_capacity: sets how many unfinished jobs, and bytes of their args, a queue may have.
-- keys: conf
-- args: now max_jobs max_bytes
--   '' is no maximum
-- Returns { now, max_jobs|'', max_bytes|'' as they were }
-- include read_time, check_format
local before = redis.call('HMGET', @conf, 'capacity_jobs', 'capacity_bytes')
for field, value in pairs({ capacity_jobs = $max_jobs, capacity_bytes = $max_bytes }) do
  if value == '' then
    redis.call('HDEL', @conf, field)
  else
    redis.call('HSET', @conf, field, value)
  end
end
return { now, before[1] or '', before[2] or '' }
