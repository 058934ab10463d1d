#!lua flags=allow-oom
-- settle: records outcomes, each only if the node still holds the entry under that fence.
-- KEYS 1 conf 2 held 3 queue 4 retry 5 schedule 6 dead 7 crashes 8 job 9 done 10,11 gone 12 idle
--      13 processed 14 processed that day 15 failed 16 failed that day
-- ARGV 1 now|'' 2 channel 3 node 4 age of remembered ids 5 plain acks 6 ids to remember
--      then the field of each plain ack; each id; then of each other: field, outcome, time, entry|'', id
-- An outcome is k (ack, kept), b (bury), d (drop), r (retry), l (release), w (release, and wait) or a (ack).
-- Returns { now, { place, from 1, of each that was not held: first the plain acks, then the others } }
-- include now, wake, gone, whole, holds, score, bury, chunks, sound, count, outcomes
local node, plain, ids = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6])
local lost, freed = {}, {}
if #ARGV > 6 + plain + ids then
  sound(4, 5, 6)
end
if plain > 0 then
  local values = redis.call('HMGET', KEYS[2], unpack(ARGV, 7, 6 + plain))
  for i = 1, plain do
    if values[i] then
      freed[#freed + 1] = ARGV[6 + i]
    else
      lost[#lost + 1] = i
    end
  end
end
local processed, failed = #freed, 0
if ids > 0 then
  local half = gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[4]))
  redis.call('SADD', half, unpack(ARGV, 7 + plain, 6 + plain + ids))
end
local place = plain
for at = 7 + plain + ids, #ARGV, 5 do
  place = place + 1
  local entry = redis.call('HGET', KEYS[2], ARGV[at])
  if entry then
    freed[#freed + 1] = ARGV[at]
    local counts = outcomes[ARGV[at + 1]](entry, tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4])
    processed, failed = processed + counts[1], failed + counts[2]
  else
    lost[#lost + 1] = place
  end
end
if #freed > 0 then
  chunks('HDEL', KEYS[2], freed)
  holds_fewer(KEYS[1], node, #freed)
end
count(13, processed)
count(15, failed)
return { now, lost }
