#!lua flags=allow-oom
-- settle: records acks of jobs that were never in trouble and leave nothing behind but themselves, each only if the node still
-- holds the job under that fence. All other outcomes: settle_others.
-- KEYS 1 conf 2 held 3 job 4 done 5,6 gone 7 history 8 notes
-- ARGV 1 now|'' 2 channel 3 node 4 age of remembered ids 5 plain acks 6 kept acks 7-9... what is counted, see counted
--      then the ids of the plain ones, of the kept ones, how long each of these is kept;
--      then how many of all are held under the same value, one behind the other, and the value; until all are
-- Returns { now, id of each that was not held }
-- include now, text, gone, whole, kept, add, tally, counted, notes, ended
local plain, kept = tonumber(ARGV[5]), tonumber(ARGV[6])
local kept_at = FIRST + plain + kept
local runs_at = kept_at + kept
local values = kept_at > FIRST and redis.call('HMGET', KEYS[2], unpack(ARGV, FIRST, kept_at - 1)) or {}
-- include held_so
if all_are_held() then
  acked = { unpack(ARGV, FIRST, kept_at - 1) }
else
  sort_out()
end
local freed, told = 0, redis.call('HMGET', KEYS[1], ARGV[3], 'kept', 'waited', 'bytes', 'half', 'since')
if #acked > 0 then
  freed = redis.call('HDEL', KEYS[2], unpack(acked))
  redis.call('HDEL', KEYS[3], unpack(acked))
  redis.call('SADD', younger(KEYS[1], { KEYS[5], KEYS[6] }, tonumber(ARGV[4]), told[5], told[6]), unpack(acked))
  drop_notes(KEYS[8], acked)
end
if #finished > 0 then
  freed = freed + redis.call('HDEL', KEYS[2], unpack(finished))
  redis.call('ZADD', KEYS[4], unpack(done))
end
if freed > 0 then
  let_go(KEYS[1], freed, told)
  count_all(KEYS[7])
  tell_ended(ARGV[2], told[3], acked, finished)
end
return { now, unpack(lost) }
