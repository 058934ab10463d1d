#!lua flags=no-writes
-- audits: a page of the audit, the newest entries first.
-- KEYS 1 audit
-- ARGV 1 now|'' 2 only entries before this number|'' 3 how many
-- Returns { now, { entry, ... } }
-- include now
local newest = redis.call('LRANGE', KEYS[1], 0, 0)[1]
local from = 0
if newest and ARGV[2] ~= '' then
  from = math.max(0, tonumber(string.sub(newest, 1, 16)) - ARGV[2] + 1)
end
return { now, redis.call('LRANGE', KEYS[1], from, from + ARGV[3] - 1) }
