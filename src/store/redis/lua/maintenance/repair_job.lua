#!lua flags=allow-oom
-- repair_job: removes a job from every place and inserts it into one. Data of no job is deleted.
-- keys: conf job meta running scheduled done dead cancelled unique stale ready[4] runs removed[2] progress groups job_index
-- args: now id meta held to time unique_key ticket_count seen...
--   meta, held: as they must be; to: ready, scheduled, done, dead, cancelled, running or none; seen: tickets; then =unique key, #run, ~member of job_index
-- Returns { now, 'repaired' | 'changed' }
-- include read_time, check_format, to_digits, record_fields, make_tickets, index_terms, index_members, insert_dead, insert_scheduled, log_limits, drop_progress, group_counts, repair_meta
local id, to, keys_at, record, meta = $id, $to, &seen + $ticket_count, redis.call('HGET', @job, $id), redis.call('HGET', @meta, $id)
local is_same = (meta or '') == $meta and (redis.call('HGET', @running, id) or '') == $held
if not is_same or (to == 'none') ~= not record then
  return { now, 'changed' }
end
local terms, tickets = {}, { unpack(ARGV, &seen, keys_at - 1) }
if record then
  tickets[#tickets + 1], tickets[#tickets + 2] = make_tickets(id, record, meta)
end
if meta then
  add_dead_terms(terms, id, meta)
end
for _, ticket in ipairs(tickets) do
  add_due_terms(terms, ticket, tonumber(redis.call('ZSCORE', @scheduled, ticket)) or 0)
  redis.call('ZREM', @scheduled, ticket)
  redis.call('SREM', @stale, ticket)
  for list = 1, 4 do
    redis.call('LREM', @ready[list], 0, ticket)
  end
end
for at = keys_at, #ARGV do
  local mark, rest = ARGV[at]:sub(1, 1), ARGV[at]:sub(2)
  if mark == '#' then
    redis.call('HDEL', @runs, id .. rest)
  elseif mark == '~' then
    terms[#terms + 1] = rest
  elseif redis.call('HGET', @unique, rest) == id then
    redis.call('HDEL', @unique, rest)
  end
end
drop_from_index(terms)
redis.call('ZREM', @done, id)
redis.call('ZREM', @dead, id)
redis.call('ZREM', @cancelled, id)
redis.call('SREM', @removed[1], id)
redis.call('SREM', @removed[2], id)
if to ~= 'running' then
  redis.call('HDEL', @running, id)
end
meta = repair_meta(id, meta, to, record)
if to == 'ready' then
  redis.call('RPUSH', @ready[read_priority(record) + 1], (make_tickets(id, record, meta)))
elseif to == 'scheduled' then
  insert_scheduled($time, (select(2, make_tickets(id, record, meta))))
elseif to == 'done' or to == 'cancelled' then
  redis.call('ZADD', to == 'done' and @done or @cancelled, $time, id)
elseif to == 'dead' then
  insert_dead($time, id, meta)
end
if $unique_key ~= '' and (to == 'ready' or to == 'scheduled' or to == 'running') then
  redis.call('HSETNX', @unique, $unique_key, id)
end
return { now, 'repaired' }
