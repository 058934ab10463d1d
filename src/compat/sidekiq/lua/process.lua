#!lua flags=allow-oom
-- process: shows a node in the list of processes, with what it runs, and takes what it has been told there.
-- KEYS 1 processes 2 record 3 work (what it runs) 4 workers (the same under its older name) 5 told
-- ARGV 1 now|'' 2 identity 3 about it 4 how much it runs 5 quiet 6 memory in KiB 7 concurrency 8 microseconds of a round trip
--      9 1: what it runs follows 10... of each: a name, what
-- Returns { now, { what it was told, oldest first } }
-- include now
local SECONDS = 60
redis.call('HLEN', KEYS[2])
redis.call('SADD', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], 'info', ARGV[3], 'busy', ARGV[4], 'beat', string.format('%.6f', now / 1000000), 'quiet', ARGV[5],
  'rss', ARGV[6], 'concurrency', ARGV[7], 'rtt_us', ARGV[8])
redis.call('EXPIRE', KEYS[2], SECONDS)
if ARGV[9] == '1' then
  redis.call('UNLINK', KEYS[3], KEYS[4])
  for key = 3, 4 do
    for i = 10, #ARGV, 2 do
      redis.call('HSET', KEYS[key], ARGV[i], ARGV[i + 1])
    end
    redis.call('EXPIRE', KEYS[key], SECONDS)
  end
end
local told = {}
for _ = 1, 10 do
  local signal = redis.pcall('RPOP', KEYS[5])
  told[#told + 1] = type(signal) == 'string' and signal or nil
end
return { now, told }
