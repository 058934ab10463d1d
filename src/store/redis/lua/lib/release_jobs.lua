-- release_jobs: writes to conf that the node holds fewer jobs and that fewer bytes of args are unfinished. `held`, `bytes` and
-- `retention` are fields of conf as they were; `times` is how long done jobs are kept.
-- needs: parse_int, widen_retention
local function release_jobs(fewer, held, bytes, ending, retention, times)
  local left, unfinished = parse_int(held, 15) - fewer, math.max(0, parse_int(bytes, 15) - ending)
  retention = widen_retention(retention, times)
  if retention then
    redis.call('HSET', @conf, $node, left, 'bytes', unfinished, 'done_retention', retention)
  else
    redis.call('HSET', @conf, $node, left, 'bytes', unfinished)
  end
end
