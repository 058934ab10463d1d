#!lua flags=allow-oom
-- confirm_ticks: records that all ticks of a queue fit the clock, after it was set back; unless it was ahead again since.
-- keys: conf
-- args: now planned_at
--   planned_at: as due_crons returned it
-- Returns { now }
-- include read_time, check_format, to_digits
if redis.call('HGET', @conf, 'planned_at') == $planned_at then
  redis.call('HSET', @conf, 'planned_at', to_digits(now))
end
return { now }
