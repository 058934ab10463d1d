-- Jobs that others take the place of: id, record and meta of each.
-- KEYS 1 job 2 due 4-7 ready 8 conf 9 meta 10 errors 13,14 gone 15 stale 17 notes 18 find
local function bytes_of_all(old)
  local bytes = 0
  for _, job in ipairs(old) do
    bytes = bytes + bytes_of(job[2])
  end
  return bytes
end

local function drop(old)
  local ids = {}
  for i, job in ipairs(old) do
    ids[i] = job[1]
    local id, record, meta = job[1], job[2], job[3]
    unseat(KEYS[2], KEYS[15], KEYS[8], 4, id, record, meta)
    redis.call('HDEL', KEYS[1], id)
    if meta then
      drop_history(KEYS[10], id, meta)
      redis.call('HDEL', KEYS[9], id)
    end
    drop_notes(KEYS[17], { id })
    redis.call('SADD', gone(KEYS[8], { KEYS[13], KEYS[14] }, tonumber(ARGV[rest_at])), id)
  end
  if #ids > 0 then
    tell_ended(ARGV[2], redis.call('HGET', KEYS[8], 'waited'), ids)
  end
end
