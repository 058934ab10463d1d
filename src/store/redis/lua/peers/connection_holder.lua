#!lua flags=no-writes
-- connection_holder: returns the living node that holds a connection.
-- keys: presence connections
-- args: now name
-- Returns { now, node|'' }
-- include read_time
local node = redis.call('HGET', @connections, $name) or ''
local ends = tonumber(redis.call('ZSCORE', @presence, node))
return { now, ends and ends >= now and node or '' }
