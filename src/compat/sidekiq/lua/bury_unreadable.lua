#!lua flags=allow-oom
-- bury_unreadable: moves entries of a sorted set that are no jobs to the dead set, wrapped so that people can read them.
-- keys: source dead
-- args: now entries...
--   entries: each as it is, and as it will be
-- Returns { now }
-- include read_time, pick_score, bury_entry, require_sorted_set
require_sorted_set(@dead)
for i = &entries, #ARGV, 2 do
  if redis.call('ZREM', @source, ARGV[i]) == 1 then
    bury_entry(ARGV[i + 1])
  end
end
return { now }
