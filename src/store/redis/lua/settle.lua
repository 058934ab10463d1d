#!lua flags=allow-oom
-- settle: records outcomes, each only if the node still holds the job under that fence.
-- KEYS 1 conf 2 held 3 job 4 meta 5 errors 6 due 7 done 8 dead 9 unique 10,11 gone 12 idle 13-16 ready 17 history 18 notes 19 groups 20 put_off 21 find
-- ARGV 1 now|'' 2 channel 3 node 4 age of remembered ids 5 plain acks 6 kept acks 7-9 what is counted, see counted
--      then id of each plain ack, its held value; id of each kept ack, its held value, how long it is kept;
--      then of each other: id, held value, outcome, time, ticket of the schedule|'', due|'', counts, failure|'', its number,
--      unique key|'', group, result or kind that is put off|'', what the group is, or when it was due before|''
-- An outcome is a (ack), k (ack, kept), b (bury), r (retry) or l (release); time is how long it is kept or waits.
-- Returns { now, { id of each that was not held } }
-- include now, add, text, gone, holds, kept, tally, counted, notes, ended
local node, plain, kept, freed, ended = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6]), 0, {}

-- The ids of a group of acks that are held as they should be.
local function held_of(first, count)
  local ids = {}
  if count > 0 then
    local values = redis.call('HMGET', KEYS[2], unpack(ARGV, first, first + count - 1))
    for i = 1, count do
      local id = ARGV[first + i - 1]
      if values[i] == ARGV[first + count + i - 1] then
        ids[#ids + 1] = id
      else
        lose(id, first == FIRST and i or plain + i)
      end
    end
  end
  if #ids > 0 then
    freed = freed + redis.call('HDEL', KEYS[2], unpack(ids))
  end
  return ids
end

local acked = held_of(FIRST, plain)
if #acked > 0 then
  redis.call('HDEL', KEYS[3], unpack(acked))
  redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[4])), unpack(acked))
  drop_notes(KEYS[18], acked)
end
local kept_at, until_of = FIRST + 2 * plain, {}
for i = 0, kept - 1 do
  until_of[ARGV[kept_at + i]] = ARGV[kept_at + 2 * kept + i]
end
local done, finished = {}, held_of(kept_at, kept)
for _, id in ipairs(finished) do
  done[#done + 1] = now + until_of[id]
  keeps(tonumber(until_of[id]))
  done[#done + 1] = id
end
if #done > 0 then
  redis.call('ZADD', KEYS[7], unpack(done))
end
if #ARGV >= FIRST + 2 * plain + 3 * kept then
-- include wake, spread, read, history, group, find, filled, put_off, others
end
if freed > 0 then
  local waited = let_go(KEYS[1], node, freed)
  write_counted(KEYS[17], KEYS[1])
  tell_ended(ARGV[2], waited, acked, finished, ended)
end
return { now, lost }
