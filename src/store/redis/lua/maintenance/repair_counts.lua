#!lua flags=allow-oom
-- repair_counts: replaces what a queue counts, if the queue has not changed since it was measured.
-- keys: conf job running scheduled done dead cancelled removed[2] groups
-- args: now fingerprint bytes retention groups...
--   retention: done_retention|''; groups: group and its value|'' if it goes
-- Returns { now, 'yes' | 'changed' }
-- include read_time, check_format, fingerprint_queue
if fingerprint_queue() ~= $fingerprint then
  return { now, 'changed' }
end
redis.call('HSET', @conf, 'bytes', $bytes)
if $retention == '' then
  redis.call('HDEL', @conf, 'done_retention')
else
  redis.call('HSET', @conf, 'done_retention', $retention)
end
for at = &groups, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', @groups, ARGV[at])
  else
    redis.call('HSET', @groups, ARGV[at], ARGV[at + 1])
  end
end
return { now, 'yes' }
