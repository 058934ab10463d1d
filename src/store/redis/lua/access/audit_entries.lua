#!lua flags=no-writes
-- audit_entries: returns a page of the audit log, newest entries first.
-- keys: audit
-- args: now before max_entries
--   before: only entries before this number|''
-- Returns { now, { entry, ... } }
-- include read_time
local newest = redis.call('LRANGE', @audit, 0, 0)[1]
local from = 0
if newest and $before ~= '' then
  from = math.max(0, tonumber(string.sub(newest, 1, 16)) - $before + 1)
end
return { now, redis.call('LRANGE', @audit, from, from + $max_entries - 1) }
