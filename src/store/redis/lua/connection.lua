#!lua flags=no-writes
-- connection: the node that holds a connection, if it is there.
-- KEYS 1 presence 2 connections
-- ARGV 1 now|'' 2 connection
-- Returns { now, node|'' }
-- include now
local node = redis.call('HGET', KEYS[2], ARGV[2]) or ''
local ends = tonumber(redis.call('ZSCORE', KEYS[1], node))
return { now, ends and ends >= now and node or '' }
