#!lua flags=no-writes
-- get: one job with all that is known of it.
-- KEYS 1 held 2 job 3 meta 4 errors 5 due 6 done 7 dead 8 notes
-- ARGV 1 now|'' 2 id
-- Returns { now } if there is none, else { now, record, meta|'', held value|'', due|'', done until|'', dead until|'', { failure },
--      progress|'', result|'', { line } }
-- include now, read, ticket, history, notes
local id = ARGV[2]
local record = redis.call('HGET', KEYS[2], id)
if not record then
  return { now }
end
local meta = redis.call('HGET', KEYS[3], id)
local failures = {}
if meta then
  local last = count(meta, 53)
  for n = math.max(1, last - HISTORY + 1), last do
    failures[#failures + 1] = redis.call('HGET', KEYS[4], id .. n) or nil
  end
end
local noted, lines = redis.call('HMGET', KEYS[8], id .. 'n', id .. 'p', id .. 'r'), {}
local last = tonumber(noted[1]) or 0
for n = math.max(1, last - LINES + 1), last do
  lines[#lines + 1] = redis.call('HGET', KEYS[8], id .. 'l' .. n) or nil
end
local _, due_ticket = tickets_of(id, record, meta)
return {
  now,
  record,
  meta or '',
  redis.call('HGET', KEYS[1], id) or '',
  redis.call('ZSCORE', KEYS[5], due_ticket) or '',
  redis.call('ZSCORE', KEYS[6], id) or '',
  redis.call('ZSCORE', KEYS[7], id) or '',
  failures,
  noted[2] or '',
  noted[3] or '',
  lines,
}
