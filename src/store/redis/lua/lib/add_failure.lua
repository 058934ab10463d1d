-- add_failure: records failure number `n` of a job, and deletes the one that is now too old.
-- needs: failure_limits
local function add_failure(id, n, entry)
  redis.call('HSET', @failures, id .. n, entry)
  if n > FAILURES_MAX then
    redis.call('HDEL', @failures, id .. (n - FAILURES_MAX))
  end
end
