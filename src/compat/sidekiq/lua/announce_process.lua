#!lua flags=allow-oom
-- announce_process: shows a node in Sidekiq's list of processes, with the jobs that it runs, and takes the signals sent to it there.
-- keys: processes record work workers signals
--   workers: the same as work, under its older name
-- args: now identity info busy quiet rss concurrency rtt_us has_work jobs...
--   rss: memory in KiB; has_work: 1 if the running jobs follow; jobs: for each job: name, value
-- Returns { now, { signal, oldest first } }
-- include read_time
local SECONDS = 60
redis.call('HLEN', @record)
redis.call('SADD', @processes, $identity)
redis.call('HSET', @record, 'info', $info, 'busy', $busy, 'beat', string.format('%.6f', now / 1000000), 'quiet', $quiet,
  'rss', $rss, 'concurrency', $concurrency, 'rtt_us', $rtt_us)
redis.call('EXPIRE', @record, SECONDS)
if $has_work == '1' then
  redis.call('UNLINK', @work, @workers)
  for _, key in ipairs({ @work, @workers }) do
    for i = &jobs, #ARGV, 2 do
      redis.call('HSET', key, ARGV[i], ARGV[i + 1])
    end
    redis.call('EXPIRE', key, SECONDS)
  end
end
local signals = {}
for _ = 1, 10 do
  local signal = redis.pcall('RPOP', @signals)
  signals[#signals + 1] = type(signal) == 'string' and signal or nil
end
return { now, signals }
