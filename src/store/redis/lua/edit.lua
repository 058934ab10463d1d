#!lua
-- edit: another record for a job that is not running; with another priority it goes to the tail of that.
-- KEYS 1 held 2 job 3 meta 4 due 5 done 6 dead 7 stale 8-11 ready 12 conf 13 find
-- ARGV 1 now|'' 2 id 3 the record as it was seen 4 as it will be
-- Returns { now, 'moved' | 'running' | 'moving' | 'changed' | 'none' }
-- include now, add, text, read, ticket, words, find, unseat
local id = ARGV[2]
local record = redis.call('HGET', KEYS[2], id)
if not record then
  return { now, 'none' }
end
if redis.call('HEXISTS', KEYS[1], id) == 1 then
  return { now, 'running' }
end
if redis.call('HEXISTS', KEYS[12], 'moving') == 1 then
  return { now, 'moving' }
end
if record ~= ARGV[3] then
  return { now, 'changed' }
end
local meta, lane = redis.call('HGET', KEYS[3], id), lane_of(ARGV[4])
local state = state_of(KEYS[4], KEYS[5], KEYS[6], id, record, meta)
local waits = state == 's' or state == 'r'
if waits and lane ~= lane_of(record) then
  local _, due_ticket = tickets_of(id, record, meta)
  local due = redis.call('ZSCORE', KEYS[4], due_ticket)
  unseat(KEYS[4], KEYS[7], KEYS[12], 8, id, record, meta)
  local attempts, crashes, failures, turn, first = 0, 0, 0, 0, text(0)
  if meta then
    attempts, crashes, failures, turn = count(meta, 33), count(meta, 43), count(meta, 53), count(meta, 63)
    first = meta:match('^' .. ('%d'):rep(16)) or first
  end
  turn = one_more(turn)
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes, failures, turn)
  redis.call('HSET', KEYS[3], id, first .. text(now) .. counts)
  local ticket = id .. string.char(lane + 97) .. turn
  if due then
    schedule(KEYS[4], due, ticket .. ' ' .. words_of(ARGV[4]))
  else
    redis.call('RPUSH', KEYS[8 + lane], ticket)
  end
end
redis.call('HSET', KEYS[2], id, ARGV[4])
if waits then
  add(KEYS[12], 'bytes', bytes_of(ARGV[4]) - bytes_of(record))
end
return { now, 'moved' }
