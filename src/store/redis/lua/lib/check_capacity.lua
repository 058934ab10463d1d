-- check_capacity: returns the reply 'full' if adding these jobs and bytes of args would exceed the capacity of the queue, else
-- nil. The first three arguments are the fields capacity_jobs, capacity_bytes and bytes of conf.
local function check_capacity(max_jobs, max_bytes, bytes, more_jobs, more_bytes)
  local unfinished = redis.call('HLEN', @running) + redis.call('ZCARD', @scheduled) - redis.call('SCARD', @stale)
  for list = 1, 4 do
    unfinished = unfinished + redis.call('LLEN', @ready[list])
  end
  local jobs, args = tonumber(max_jobs), tonumber(max_bytes)
  local too_many = jobs and more_jobs > 0 and unfinished + more_jobs > jobs
  local too_much = args and more_bytes > 0 and (tonumber(bytes) or 0) + more_bytes > args
  if too_many or too_much then
    return { now, 'full', max_jobs or '', max_bytes or '' }
  end
end
