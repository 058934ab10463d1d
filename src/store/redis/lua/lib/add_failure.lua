-- add_failure: records failure number `n` of a job, and deletes the one that is now too old.
-- needs: failure_limits
local function add_failure(id, n, entry)
  redis.call('HSET', @errors, id .. n, entry)
  if n > FAILURES_MAX then
    redis.call('HDEL', @errors, id .. (n - FAILURES_MAX))
  end
end
