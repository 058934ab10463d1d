#!lua
-- push_checked: puts jobs into one queue, all or none, after a look whether any of them is there already.
-- Whatever is in the way is answered before the first write; the caller sends the rest again without it.
-- KEYS 1 job 2 due 3 idle 4-7 ready 8 conf 9 meta 10 errors 11 held 12 unique 13,14 gone 15 stale 16 history 17 notes 18 find
-- ARGV 1 now|'' 2 channel 3... the batch, then: age of remembered ids, look(1: any id may be known),
--      how many ids are only looked for, those ids; key, id, k|r of the unique
-- Returns { now, { id, holder|'' of each refused }, { id, replaced id } }, or { now, 'full', jobs|'', bytes|'' }
-- include now, add, text, wake, read, ticket, words, find, unseat, history, gone, batch, known, tally, limit, notes, ended, replace
local refused, replaced, old = {}, {}, {}
local unique_at = rest_at + 3 + ARGV[rest_at + 2]
local ids = {}
for n = 1, ARGV[rest_at + 1] == '1' and jobs or 0 do
  ids[n] = ARGV[7 + 2 * n]
end
for n = rest_at + 3, unique_at - 1 do
  ids[#ids + 1] = ARGV[n]
end
for _, id in ipairs(known_of(ids)) do
  refused[#refused + 1] = id
  refused[#refused + 1] = ''
end
for n = unique_at, #ARGV, 3 do
  local holder, id = redis.call('HGET', KEYS[12], ARGV[n]), ARGV[n + 1]
  local record = holder and redis.call('HGET', KEYS[1], holder)
  if record then
    -- Neither under its holder's feet, nor when it may be on its way to another store.
    local fixed = redis.call('HEXISTS', KEYS[11], holder) + redis.call('HEXISTS', KEYS[8], 'moving')
    if ARGV[n + 2] == 'k' or fixed > 0 then
      refused[#refused + 1] = id
      refused[#refused + 1] = holder
    else
      replaced[#replaced + 1] = id
      replaced[#replaced + 1] = holder
      old[#old + 1] = { holder, record, redis.call('HGET', KEYS[9], holder) }
    end
  end
end
if #refused > 0 then
  return { now, refused, {} }
end
local refusal = full(KEYS[8], KEYS[11], KEYS[2], KEYS[15], 4, jobs - #old, bytes - bytes_of_all(old))
if refusal then
  return refusal
end
drop(old)
for n = unique_at, #ARGV, 3 do
  redis.call('HSET', KEYS[12], ARGV[n], ARGV[n + 1])
end
-- include put
if scheduled > 0 then
-- include put_later
end
if sooner then
  wake(KEYS[3], ARGV[2])
end
add(KEYS[8], 'bytes', bytes - bytes_of_all(old))
happened(KEYS[16], '00', jobs)
return { now, {}, replaced }
