#!lua
-- push: puts jobs into one queue that nobody can have pushed before, and that share no unique key with others.
-- KEYS 1 job 2 due 3 idle 4-7 ready 8 conf 9 history 10 held 11 stale 12 find
-- ARGV 1 now|'' 2 channel 3... the batch
-- Returns { now, {}, {}, 1: the queue has a limit, 1: an idle node was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include now, add, wake, batch, tally, limit
local refused, limited = full(KEYS[8], KEYS[10], KEYS[2], KEYS[11], 4, jobs, bytes)
if refused then
  return refused
end
-- include put
if scheduled > 0 then
-- include text, words, find, put_later
end
add(KEYS[8], 'bytes', bytes)
happened(KEYS[9], '00', jobs)
return { now, {}, {}, limited, sooner and wake(KEYS[3], ARGV[2]) or 0 }
