#!lua
-- put_audit: adds an entry to the audit, of which the newest are kept.
-- KEYS 1 audit
-- ARGV 1 now|'' 2 how many are kept 3 entry
-- Returns { now }
-- include now
local newest = redis.call('LRANGE', KEYS[1], 0, 0)[1]
local no = newest and tonumber(string.sub(newest, 1, 16)) or 0
redis.call('LPUSH', KEYS[1], string.format('%016.0f%016.0f', no + 1, now) .. ARGV[3])
redis.call('LTRIM', KEYS[1], 0, ARGV[2] - 1)
return { now }
