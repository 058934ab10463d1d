#!lua flags=allow-oom
-- settle_others: records outcomes that are not plain acks, or are of jobs in trouble or with a unique key or a result, each only
-- if the node still holds the job under that fence.
-- KEYS 1 conf 2 held 3 job 4 meta 5 errors 6 due 7 done 8 dead 9 unique 10,11 gone 12 idle 13-16 ready 17 history 18 notes 19 groups 20 put_off 21 find
-- ARGV 1 now|'' 2 channel 3 node 4 age of remembered ids 5,6 '' 7-9... what is counted, see counted
--      then of each: id, held value, outcome, time, ticket of the schedule|'', due|'', counts, failure|'', its number,
--      unique key|'', group, result or kind that is put off|'', what the group is, or when it was due before|''
-- An outcome is a (ack), k (ack, kept), b (bury), r (retry) or l (release); time is how long it is kept or waits.
-- Returns { now, id of each that was not held }
-- include now, text, gone, whole, kept, add, tally, counted, notes, ended, wake, spread, read, history, group, words, find, filled, put_off, other
local freed, ended, again = 0, {}, false
for at = FIRST, #ARGV, 12 do
  if redis.call('HGET', KEYS[2], ARGV[at]) ~= ARGV[at + 1] then
    lose(ARGV[at], (at - FIRST) / 12 + 1)
  else
    freed = freed + redis.call('HDEL', KEYS[2], ARGV[at])
    local back = other(at)
    again, ended[#ended + 1] = again or back, not back and ARGV[at] or nil
  end
end
spread('LPUSH', 13, head)
write_hints()
if again then
  wake(KEYS[12], ARGV[2])
end
if freed > 0 then
  local told = redis.call('HMGET', KEYS[1], ARGV[3], 'kept', 'waited', 'bytes')
  let_go(KEYS[1], freed, told)
  count_all(KEYS[17])
  tell_ended(ARGV[2], told[3], ended)
end
return { now, unpack(lost) }
