-- arrive: writes a job as it is. It begins at this place in ARGV:
--      id, ready ticket, record, meta|'', r|s|d|b (ready, scheduled, done, dead), due or until, unique key|'', failures, each of them
-- KEYS 1 job 2 due 4-7 ready 8 meta 9 errors 10 done 11 dead 12 unique 16 stale
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
    redis.call('HSET', KEYS[8], id, meta)
  end
  for n = 1, tonumber(failures) do
    redis.call('HSET', KEYS[9], id .. n, ARGV[at + 7 + n])
  end
  if where == 'r' then
    redis.call('RPUSH', KEYS[4 + lane], ticket)
  elseif where == 's' then
    redis.call('ZADD', KEYS[2], time, meta == '' and ticket .. lane or ticket)
  elseif where == 'd' then
    redis.call('ZADD', KEYS[10], time, id)
  else
    redis.call('ZADD', KEYS[11], time, id)
  end
  if key ~= '' then
    redis.call('HSET', KEYS[12], key, id)
  end
end
