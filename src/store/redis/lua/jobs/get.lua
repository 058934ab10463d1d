#!lua flags=no-writes
-- get: returns one job with all that is kept of it.
-- keys: conf running job meta runs scheduled done dead cancelled progress
-- args: now id
-- Returns { now } if there is none, else { now, record, meta|'', held value|'', due|'', done until|'', dead until|'', cancelled until|'', { run },
--   progress|'', result|'', { log line }, ack|'' }
-- include read_time, check_format, record_fields, make_tickets, run_limits, log_limits
local id = $id
local record = redis.call('HGET', @job, id)
if not record then
  return { now }
end
local meta = redis.call('HGET', @meta, id)
local runs = {}
if meta then
  local last = read_count(meta, 53)
  for n = math.max(1, last - RUNS_MAX + 1), last do
    runs[#runs + 1] = redis.call('HGET', @runs, id .. n) or nil
  end
end
local progress, lines = redis.call('HMGET', @progress, id .. 'n', id .. 'p', id .. 'r'), {}
local last = tonumber(progress[1]) or 0
for n = math.max(1, last - LOG_LINES_MAX + 1), last do
  lines[#lines + 1] = redis.call('HGET', @progress, id .. 'l' .. n) or nil
end
local _, due_ticket = make_tickets(id, record, meta)
return {
  now,
  record,
  meta or '',
  redis.call('HGET', @running, id) or '',
  redis.call('ZSCORE', @scheduled, due_ticket) or '',
  redis.call('ZSCORE', @done, id) or '',
  redis.call('ZSCORE', @dead, id) or '',
  redis.call('ZSCORE', @cancelled, id) or '',
  runs,
  progress[2] or '',
  progress[3] or '',
  lines,
  redis.call('HGET', @runs, id) or '',
}
