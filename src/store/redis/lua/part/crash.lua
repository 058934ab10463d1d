-- count_crash: one more crash in the meta of a job, and in its history. Returns which turn its tickets have.
-- KEYS 5 meta 6 errors
local function count_crash(id, node, why)
  local meta = redis.call('HGET', KEYS[5], id)
  local due, attempts, crashes, failures, turn = text(0), 0, 0, 0, 0
  if meta then
    due, attempts, crashes = meta:sub(1, 16), tonumber(meta:sub(33, 42)), tonumber(meta:sub(43, 52))
    failures, turn = tonumber(meta:sub(53, 62)), tonumber(meta:sub(63, 72))
  end
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes + 1, failures + 1, turn)
  redis.call('HSET', KEYS[5], id, due .. text(now) .. counts)
  add_history(KEYS[6], id, failures + 1, text(now) .. string.format('%010d', attempts + 1) .. node .. why)
  return turn
end
