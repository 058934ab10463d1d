#!lua flags=no-writes
-- audit_entries: returns a page of the audit log, newest entries first.
-- keys: audit
-- args: now before max_entries
--   before: only entries before this number|''
-- Returns { now, { entry, ... } }
-- include read_time
local from = $before == '' and '+inf' or '(' .. $before
return { now, redis.call('ZRANGE', @audit, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, $max_entries) }
