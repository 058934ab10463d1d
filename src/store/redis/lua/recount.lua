#!lua flags=allow-oom
-- recount: what was counted anew takes the place of what is told, if the queue is as it was then.
-- KEYS 1 conf 2 job 3 held 4 due 5 done 6 dead 7,8 gone 9 groups
-- ARGV 1 now|'' 2 mark 3 bytes of args 4 how long done jobs are kept|'' 5... group, what is known of it|'' (then it goes)
-- Returns { now, 'yes' | 'changed' }
-- include now, mark
if mark() ~= ARGV[2] then
  return { now, 'changed' }
end
redis.call('HSET', KEYS[1], 'bytes', ARGV[3])
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], 'kept')
else
  redis.call('HSET', KEYS[1], 'kept', ARGV[4])
end
for at = 5, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', KEYS[9], ARGV[at])
  else
    redis.call('HSET', KEYS[9], ARGV[at], ARGV[at + 1])
  end
end
return { now, 'yes' }
