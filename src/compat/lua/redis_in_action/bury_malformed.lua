#!lua flags=allow-oom
-- bury_malformed: removes items that cannot be read from the delayed items or from a list, and keeps them as dead jobs.
-- keys: conf source job meta runs dead groups job_index
-- args: now source_type keep counts items...
--   source_type: delayed or list; keep: how long they are kept; items: for each item: item, id, record, failure, group, kind and error of the
--   group
-- Returns { now, how many were buried }
-- include read_time, check_format, to_digits, record_fields, group_counts, index_terms, index_members, insert_dead
local buried = 0
for n = &items, #ARGV, 6 do
  local item, id = ARGV[n], ARGV[n + 1]
  local removed
  if $source_type == 'delayed' then
    removed = redis.call('ZREM', @source, item)
  else
    removed = redis.call('LREM', @source, 1, item)
  end
  if removed == 1 then
    redis.call('HSET', @job, id, ARGV[n + 2])
    local group = join_group(ARGV[n + 4], to_digits(now), ARGV[n + 5])
    local meta = to_digits(now) .. to_digits(now) .. $counts .. group .. read_terms(ARGV[n + 2])
    redis.call('HSET', @meta, id, meta)
    redis.call('HSET', @runs, id .. '1', to_digits(now) .. ARGV[n + 3])
    insert_dead(now + $keep, id, meta)
    buried = buried + 1
  end
end
return { now, buried }
