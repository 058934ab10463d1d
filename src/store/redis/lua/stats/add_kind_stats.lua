#!lua flags=allow-oom
-- add_kind_stats: adds outcomes of attempts, by kind, to the current minute and hour. The first call of an interval deletes some of those that
-- are too old.
-- keys: kinds kind_minutes
-- args: now max_hours max_minutes max_kinds rest counts...
--   max_kinds: in one interval; rest: the kind for all beyond; counts: kind; then for each counter: its number (two digits), count, a space
-- Returns { now }
-- include read_time, merge_counters, kind_intervals
add_kinds(@kinds, 3600000000, tonumber($max_hours), tonumber($max_kinds))
add_kinds(@kind_minutes, 60000000, tonumber($max_minutes), tonumber($max_kinds))
return { now }
