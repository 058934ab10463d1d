#!lua flags=no-writes
-- inspect_job: returns all that is kept of one job, at one time.
-- keys: conf job meta running scheduled done dead cancelled unique stale ready[4] lease removed[2] job_index
-- args: now id ticket_count key_count seen...
--   seen: tickets that the job may have; then unique keys; then members of job_index
-- Returns { now, head of its record|'', meta|'', held value|'', done until|'', dead until|'', cancelled until|'', 1 if remembered as removed, the last
--   fence, 1 if its holder has a lease, { ticket, due|'', 1 if stale, how often it is in each ready list }, { the job that a key
--   names|'' }, { member of job_index that exists } }
-- include read_time, check_format, to_digits, record_fields, make_tickets, index_terms
local id, tickets, keys, done, terms, found = $id, {}, {}, {}, {}, {}
local record, meta = redis.call('HGET', @job, id), redis.call('HGET', @meta, id)
local held = redis.call('HGET', @running, id) or ''
local keys_at = &seen + $ticket_count
local terms_at = keys_at + $key_count
local wanted = { unpack(ARGV, &seen, keys_at - 1) }
if record then
  wanted[#wanted + 1], wanted[#wanted + 2] = make_tickets(id, record, meta)
end
for _, ticket in ipairs(wanted) do
  if not done[ticket] then
    done[ticket] = true
    local row = { ticket, redis.call('ZSCORE', @scheduled, ticket) or '', redis.call('SISMEMBER', @stale, ticket) }
    for list = 1, 4 do
      row[#row + 1] = #redis.call('LPOS', @ready[list], ticket, 'COUNT', 0)
    end
    tickets[#tickets + 1] = row
    add_due_terms(terms, ticket, tonumber(row[2]) or 0)
  end
end
for at = keys_at, terms_at - 1 do
  keys[#keys + 1] = redis.call('HGET', @unique, ARGV[at]) or ''
end
if meta then
  add_dead_terms(terms, id, meta)
end
for at = terms_at, #ARGV do
  terms[#terms + 1] = ARGV[at]
end
for _, member in ipairs(terms) do
  found[#found + 1] = redis.call('ZSCORE', @job_index, member) and member or nil
end
return {
  now,
  record and record:match('^[^\n]*') or '',
  meta or '',
  held,
  redis.call('ZSCORE', @done, id) or '',
  redis.call('ZSCORE', @dead, id) or '',
  redis.call('ZSCORE', @cancelled, id) or '',
  math.max(redis.call('SISMEMBER', @removed[1], id), redis.call('SISMEMBER', @removed[2], id)),
  redis.call('HGET', @conf, 'fence') or '0',
  redis.call('ZSCORE', @lease, held:sub(1, 36)) and 1 or 0,
  tickets,
  keys,
  found,
}
