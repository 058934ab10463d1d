#!lua
-- add_audit_entry: adds an entry to the audit log, and deletes the oldest beyond the limit.
-- keys: audit
-- args: now max_entries entry
-- Returns { now }
-- include read_time
local newest = redis.call('LRANGE', @audit, 0, 0)[1]
local number = newest and tonumber(string.sub(newest, 1, 16)) or 0
redis.call('LPUSH', @audit, string.format('%016.0f%016.0f', number + 1, now) .. $entry)
redis.call('LTRIM', @audit, 0, $max_entries - 1)
return { now }
