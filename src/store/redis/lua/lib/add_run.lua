-- add_run: records run number `n` of a job, and deletes the one that is now too old.
-- needs: run_limits
local function add_run(id, n, entry)
  redis.call('HSET', @runs, id .. n, entry)
  if n > RUNS_MAX then
    redis.call('HDEL', @runs, id .. (n - RUNS_MAX))
  end
end
