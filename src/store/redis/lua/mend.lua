#!lua flags=allow-oom
-- mend: takes a job out of every place, and puts it into one; what belongs to no job goes.
-- KEYS 1 conf 2 job 3 meta 4 held 5 due 6 done 7 dead 8 unique 9 stale 10-13 ready 14 errors 15,16 gone 17 notes 18 groups 19 find
-- ARGV 1 now|'' 2 id 3 meta as it must be|'' 4 held value as it must be|'' 5 ready|due|done|dead|held|none 6 its moment
--   7 its unique key|'' 8 how many tickets follow, then tickets, then =unique key, #failure, ~member of find that may be its own
-- Returns { now, 'mended' | 'changed' }; changed: it is not as it was seen, and nothing was done
-- include now, text, read, ticket, words, find, notes, group, keep_meta
local id, to, key = ARGV[2], ARGV[5], ARGV[7]
local record, meta = redis.call('HGET', KEYS[2], id), redis.call('HGET', KEYS[3], id)
local is_same = (meta or '') == ARGV[3] and (redis.call('HGET', KEYS[4], id) or '') == ARGV[4]
if not is_same or (to == 'none') ~= not record then
  return { now, 'changed' }
end
local words, tickets = {}, { unpack(ARGV, 9, 8 + ARGV[8]) }
if record then
  tickets[#tickets + 1], tickets[#tickets + 2] = tickets_of(id, record, meta)
end
if meta then
  words_dead(words, id, meta)
end
for _, ticket in ipairs(tickets) do
  words_due(words, ticket, tonumber(redis.call('ZSCORE', KEYS[5], ticket)) or 0)
  redis.call('ZREM', KEYS[5], ticket)
  redis.call('SREM', KEYS[9], ticket)
  for list = 10, 13 do
    redis.call('LREM', KEYS[list], 0, ticket)
  end
end
for at = 9 + ARGV[8], #ARGV do
  local mark, rest = ARGV[at]:sub(1, 1), ARGV[at]:sub(2)
  if mark == '#' then
    redis.call('HDEL', KEYS[14], id .. rest)
  elseif mark == '~' then
    words[#words + 1] = rest
  elseif redis.call('HGET', KEYS[8], rest) == id then
    redis.call('HDEL', KEYS[8], rest)
  end
end
drop_words(words)
redis.call('ZREM', KEYS[6], id)
redis.call('ZREM', KEYS[7], id)
redis.call('SREM', KEYS[15], id)
redis.call('SREM', KEYS[16], id)
if to ~= 'held' then
  redis.call('HDEL', KEYS[4], id)
end
meta = keep_meta(id, meta, to, record)
if to == 'ready' then
  redis.call('RPUSH', KEYS[10 + lane_of(record)], (tickets_of(id, record, meta)))
elseif to == 'due' then
  schedule(KEYS[5], ARGV[6], (select(2, tickets_of(id, record, meta))))
elseif to == 'done' then
  redis.call('ZADD', KEYS[6], ARGV[6], id)
elseif to == 'dead' then
  bury(KEYS[7], ARGV[6], id, meta)
end
if key ~= '' and (to == 'ready' or to == 'due' or to == 'held') then
  redis.call('HSETNX', KEYS[8], key, id)
end
return { now, 'mended' }
