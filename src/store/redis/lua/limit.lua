#!lua flags=allow-oom
-- limit: sets how much may be in a queue.
-- KEYS 1 conf
-- ARGV 1 now|'' 2 most jobs|'' 3 most bytes|''
-- Returns { now, most jobs|'', most bytes|'' as they were }
-- include now
local was = redis.call('HMGET', KEYS[1], 'limit_jobs', 'limit_bytes')
for n, field in ipairs({ 'limit_jobs', 'limit_bytes' }) do
  if ARGV[n + 1] == '' then
    redis.call('HDEL', KEYS[1], field)
  else
    redis.call('HSET', KEYS[1], field, ARGV[n + 1])
  end
end
return { now, was[1] or '', was[2] or '' }
