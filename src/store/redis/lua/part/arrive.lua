-- arrive: writes a job as it is. It begins at this place in ARGV:
--      id, ready ticket, record, meta|'', r|s|d|b (ready, scheduled, done, dead), due or until, unique key|'', how many failures,
--      group|'', what it is|'', how long it is kept when done, how many fields of notes, name and value; each failure, each
--      field of notes
-- KEYS 1 job 2 due 4-7 ready 8 meta 9 errors 10 done 11 dead 12 unique 15 conf 16 stale 17 notes 18 groups 19 find
local function arrive(at, is_stale)
  local id, ticket, record, meta = unpack(ARGV, at, at + 3)
  local where, time, key, failures = unpack(ARGV, at + 4, at + 7)
  local lane = lane_of(record)
  -- One that was here before may have left a ticket of the same name behind.
  if is_stale and redis.call('SREM', KEYS[16], ticket) == 1 then
    for list = 4, 7 do
      redis.call('LREM', KEYS[list], 1, ticket)
    end
  end
  redis.call('HSET', KEYS[1], id, record)
  if meta ~= '' then
    if where == 'b' then
      meta = meta .. join_group(KEYS[18], ARGV[at + 8], meta:sub(17, 32), ARGV[at + 9]) .. words_of(record)
    end
    redis.call('HSET', KEYS[8], id, meta)
  end
  for n = 1, tonumber(failures) do
    redis.call('HSET', KEYS[9], id .. n, ARGV[at + 11 + n])
  end
  local notes_at = at + 12 + tonumber(failures)
  for n = notes_at, notes_at + ARGV[at + 11] - 1, 2 do
    redis.call('HSET', KEYS[17], id .. ARGV[n], ARGV[n + 1])
  end
  if where == 'r' or where == 's' then
    add(KEYS[15], 'bytes', bytes_of(record))
  end
  if where == 'r' then
    redis.call('RPUSH', KEYS[4 + lane], ticket)
  elseif where == 's' then
    schedule(KEYS[2], time, (meta == '' and ticket .. lane or ticket) .. ' ' .. words_of(record))
  elseif where == 'd' then
    redis.call('ZADD', KEYS[10], time, id)
    keeps(tonumber(ARGV[at + 10]))
  else
    bury(KEYS[11], time, id, meta)
  end
  if key ~= '' then
    redis.call('HSET', KEYS[12], key, id)
  end
end
