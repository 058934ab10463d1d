#!lua flags=no-writes
-- inspect: all that is kept of one job, at one moment.
-- KEYS 1 conf 2 job 3 meta 4 held 5 due 6 done 7 dead 8 unique 9 stale 10-13 ready 14 lease 15,16 gone 17 find
-- ARGV 1 now|'' 2 id 3 how many tickets follow 4 how many unique keys, then tickets that it may have, then keys, then members
--   of find that may be its own
-- Returns { now, head of its record|'', meta|'', held value|'', done until|'', dead until|'', remembered as gone(1|0),
--   the last fence, its holder has a lease(1|0), { ticket, due|'', stale(1|0), times in each ready list }, { whom a key names|'' },
--   { member of find that is there } }
-- include now, text, read, ticket, words, find
local id, tickets, keys, seen, words, found = ARGV[2], {}, {}, {}, {}, {}
local record, meta = redis.call('HGET', KEYS[2], id), redis.call('HGET', KEYS[3], id)
local held = redis.call('HGET', KEYS[4], id) or ''
local keys_at = 5 + ARGV[3]
local words_at = keys_at + ARGV[4]
local wanted = { unpack(ARGV, 5, keys_at - 1) }
if record then
  wanted[#wanted + 1], wanted[#wanted + 2] = tickets_of(id, record, meta)
end
for _, ticket in ipairs(wanted) do
  if not seen[ticket] then
    seen[ticket] = true
    local row = { ticket, redis.call('ZSCORE', KEYS[5], ticket) or '', redis.call('SISMEMBER', KEYS[9], ticket) }
    for list = 10, 13 do
      row[#row + 1] = #redis.call('LPOS', KEYS[list], ticket, 'COUNT', 0)
    end
    tickets[#tickets + 1] = row
    words_due(words, ticket, tonumber(row[2]) or 0)
  end
end
for at = keys_at, words_at - 1 do
  keys[#keys + 1] = redis.call('HGET', KEYS[8], ARGV[at]) or ''
end
if meta then
  words_dead(words, id, meta)
end
for at = words_at, #ARGV do
  words[#words + 1] = ARGV[at]
end
for _, member in ipairs(words) do
  found[#found + 1] = redis.call('ZSCORE', FIND, member) and member or nil
end
return {
  now,
  record and record:match('^[^\n]*') or '',
  meta or '',
  held,
  redis.call('ZSCORE', KEYS[6], id) or '',
  redis.call('ZSCORE', KEYS[7], id) or '',
  math.max(redis.call('SISMEMBER', KEYS[15], id), redis.call('SISMEMBER', KEYS[16], id)),
  redis.call('HGET', KEYS[1], 'fence') or '0',
  redis.call('ZSCORE', KEYS[14], held:sub(1, 36)) and 1 or 0,
  tickets,
  keys,
  found,
}
