#!lua flags=allow-oom
-- reschedule: gives a job that is not running a new due moment; one that has ended starts over.
-- KEYS 1 held 2 job 3 meta 4 due 5 done 6 dead 7 unique 8 stale 9 idle 10-13 ready 14 conf 15 groups 16 find
-- ARGV 1 now|'' 2 channel 3 id 4 due ('+n': microseconds from now) 5 unique key|'' 6 the state it must be in: s|r|d|b|''
-- Returns { now, 'moved' | 'running' | 'moving' | 'changed' | 'none' | id of the other job that has the key }
-- include now, add, text, wake, read, ticket, words, find, unseat, group, unbury
local id, key = ARGV[3], ARGV[5]
local record = redis.call('HGET', KEYS[2], id)
if not record then
  return { now, 'none' }
end
if redis.call('HEXISTS', KEYS[1], id) == 1 then
  return { now, 'running' }
end
if redis.call('HEXISTS', KEYS[14], 'moving') == 1 then
  return { now, 'moving' }
end
local meta = redis.call('HGET', KEYS[3], id)
local state = state_of(KEYS[4], KEYS[5], KEYS[6], id, record, meta)
if ARGV[6] ~= '' and ARGV[6] ~= state then
  return { now, 'changed' }
end
local ended = state == 'd' or state == 'b'
local holder = ended and key ~= '' and redis.call('HGET', KEYS[7], key)
if holder and redis.call('HEXISTS', KEYS[2], holder) == 1 then
  return { now, holder }
end
local attempts, crashes, failures, turn = 0, 0, 0, 0
if meta then
  failures, turn = count(meta, 53), count(meta, 63)
end
if meta and not ended then
  attempts, crashes = count(meta, 33), count(meta, 43)
end
if ended then
  redis.call('ZREM', KEYS[5], id)
  unbury(KEYS[6], KEYS[15], id, meta)
  add(KEYS[14], 'bytes', bytes_of(record))
  if key ~= '' then
    redis.call('HSET', KEYS[7], key, id)
  end
else
  unseat(KEYS[4], KEYS[8], KEYS[14], 10, id, record, meta)
end
local due = tonumber(ARGV[4]) + (ARGV[4]:byte(1) == 43 and now or 0)
turn = one_more(turn)
local counts = string.format('%010d%010d%010d%010d', attempts, crashes, failures, turn)
redis.call('HSET', KEYS[3], id, text(math.max(due, now)) .. text(now) .. counts)
local lane = lane_of(record)
local ticket = id .. string.char(lane + 97) .. turn
if due > now then
  schedule(KEYS[4], due, ticket .. ' ' .. words_of(record))
else
  redis.call('RPUSH', KEYS[10 + lane], ticket)
end
wake(KEYS[9], ARGV[2])
return { now, 'moved' }
