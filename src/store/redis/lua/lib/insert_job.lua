-- insert_job: writes a job of another store as it is there. It begins at `at` of the arguments:
--   id, ready ticket, record, meta|'', r|s|d|b|c (ready, scheduled, done, dead, cancelled), due or kept until, unique key|'', number of
--   runs, group or ack of a done job|'', kind and error of the group|'', how long it is kept when done, number of progress fields and values;
--   each run; each progress field and its value
-- How long a done job is kept is added to `times`.
-- needs: record_fields, increment_field, insert_scheduled, insert_dead, group_counts
local function insert_job(at, has_stale, times)
  local id, ticket, record, meta = unpack(ARGV, at, at + 3)
  local state, time, unique_key, runs = unpack(ARGV, at + 4, at + 7)
  -- An earlier job with this id may have left a ticket with the same text.
  if has_stale and redis.call('SREM', @stale, ticket) == 1 then
    for list = 1, 4 do
      redis.call('LREM', @ready[list], 1, ticket)
    end
  end
  redis.call('HSET', @job, id, record)
  if meta ~= '' then
    if state == 'b' then
      meta = meta .. join_group(ARGV[at + 8], meta:sub(17, 32), ARGV[at + 9]) .. read_terms(record)
    end
    redis.call('HSET', @meta, id, meta)
  end
  for n = 1, tonumber(runs) do
    redis.call('HSET', @runs, id .. n, ARGV[at + 11 + n])
  end
  local progress_at = at + 12 + tonumber(runs)
  for n = progress_at, progress_at + ARGV[at + 11] - 1, 2 do
    redis.call('HSET', @progress, id .. ARGV[n], ARGV[n + 1])
  end
  if state == 'r' or state == 's' then
    increment_field(@conf, 'bytes', args_bytes(record))
  end
  if state == 'r' then
    redis.call('RPUSH', @ready[read_priority(record) + 1], ticket)
  elseif state == 's' then
    insert_scheduled(time, (meta == '' and ticket .. read_priority(record) or ticket) .. ' ' .. read_terms(record))
  elseif state == 'd' then
    redis.call('ZADD', @done, time, id)
    if ARGV[at + 8] ~= '' then
      redis.call('HSET', @runs, id, ARGV[at + 8])
    end
    times[#times + 1] = tonumber(ARGV[at + 10])
  elseif state == 'c' then
    redis.call('ZADD', @cancelled, time, id)
  else
    insert_dead(time, id, meta)
  end
  if unique_key ~= '' then
    redis.call('HSET', @unique, unique_key, id)
  end
end
