#!lua flags=allow-oom
-- settle: records outcomes, each only if the node still holds the entry under its fence.
-- keys: conf running list retry schedule dead crashes job done removed[2] idle processed processed_today failed failed_today
-- args: now channel node remember plain_count id_count fields...
--   fields: for each plain ack: field; ids to remember; then for each other outcome: field, outcome, time, entry|'', id
-- An outcome is k (ack, kept), b (bury), d (drop), r (retry), l (release), w (release, and wait) or a (ack).
-- Returns { now, { for each job that was not held: its number from 1, first the plain acks, then the others } }
-- include read_time, check_format, wake_node, rotate_removed, choose_removed, parse_int, count_held, subtract_held, pick_score, bury_entry
-- include call_in_chunks, require_sorted_set, count_processed, apply_outcome
local plain, lost, freed = tonumber($plain_count), {}, {}
local ids_at = &fields + plain
local others_at = ids_at + $id_count
if #ARGV >= others_at then
  require_sorted_set(@retry, @schedule, @dead)
end
if plain > 0 then
  local values = redis.call('HMGET', @running, unpack(ARGV, &fields, ids_at - 1))
  for i = 1, plain do
    if values[i] then
      freed[#freed + 1] = ARGV[&fields + i - 1]
    else
      lost[#lost + 1] = i
    end
  end
end
local processed, failed = #freed, 0
if others_at > ids_at then
  redis.call('SADD', choose_removed(tonumber($remember)), unpack(ARGV, ids_at, others_at - 1))
end
local number = plain
for at = others_at, #ARGV, 5 do
  number = number + 1
  local entry = redis.call('HGET', @running, ARGV[at])
  if entry then
    freed[#freed + 1] = ARGV[at]
    local counts = apply_outcome[ARGV[at + 1]](entry, tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4])
    processed, failed = processed + counts[1], failed + counts[2]
  else
    lost[#lost + 1] = number
  end
end
if #freed > 0 then
  call_in_chunks('HDEL', @running, freed)
  subtract_held(@conf, $node, #freed)
end
count_processed(@processed, @processed_today, processed)
count_processed(@failed, @failed_today, failed)
return { now, lost }
