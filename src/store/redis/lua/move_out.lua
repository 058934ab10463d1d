#!lua flags=allow-oom
-- move_out: deletes jobs that are in another store now. Their ids are not remembered: they may come back.
-- KEYS 1 conf 2 held 3 job 4 meta 5 errors 6 due 7 done 8 dead 9 unique 10 stale 11-14 ready 15 notes 16 groups 17 find
-- ARGV 1 now|'' 2 mover 3... id and moment of the push of each
-- Returns { now, how many | -1 if the queue is not marked for this mover }
-- include now, add, text, read, ticket, words, find, unseat, history, sweep, notes, group, unbury, erase
local PUSHED, UNIQUE = '^' .. FIELD:rep(2) .. '(%d*)', '^' .. FIELD:rep(7) .. '([^\t\n]*)'
local conf = redis.call('HMGET', KEYS[1], 'moving', 'stale')
if (conf[1] or ''):sub(1, 36) ~= ARGV[2] then
  return { now, -1 }
end

-- A job that would be claimed next stands at the head of its list, where it is found at once.
local function leave_line(id, record, meta)
  local ready_ticket, due_ticket = tickets_of(id, record, meta)
  local list = KEYS[11 + lane_of(record)]
  if unschedule(KEYS[6], due_ticket) then
    return
  end
  if redis.call('LPOS', list, ready_ticket, 'MAXLEN', NEAR) then
    redis.call('LREM', list, 1, ready_ticket)
  else
    mark_stale(KEYS[10], KEYS[1], list, ready_ticket)
  end
end

if conf[2] then
  sweep()
end
local gone = 0
for n = 3, #ARGV, 2 do
  local id = ARGV[n]
  local record = redis.call('HGET', KEYS[3], id)
  if record and record:match(PUSHED) == ARGV[n + 1] and redis.call('HEXISTS', KEYS[2], id) == 0 then
    local meta, key = redis.call('HGET', KEYS[4], id), record:match(UNIQUE) or ''
    local ended = redis.call('ZREM', KEYS[7], id) == 1
    if not unbury(KEYS[8], KEYS[16], id, meta) and not ended then
      leave_line(id, record, meta)
      add(KEYS[1], 'bytes', -bytes_of(record))
    end
    drop_notes(KEYS[15], { id })
    erase(id, meta, key)
    gone = gone + 1
  end
end
return { now, gone }
