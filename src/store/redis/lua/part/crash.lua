-- count_crash: one more crash in the meta of a job, and in its history. Returns which turn its tickets have.
-- KEYS 7 meta 8 errors
local function count_crash(id, node, why)
  local meta = redis.call('HGET', KEYS[7], id)
  local due, attempts, crashes, failures, turn = text(0), 0, 0, 0, 0
  if meta then
    due, attempts, crashes = text(tonumber(meta:sub(1, 16)) or 0), count(meta, 33), count(meta, 43)
    failures, turn = count(meta, 53), count(meta, 63)
  end
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes + 1, failures + 1, turn)
  redis.call('HSET', KEYS[7], id, due .. text(now) .. counts)
  add_history(KEYS[8], id, failures + 1, text(now) .. string.format('%010d', attempts + 1) .. node .. why)
  return turn
end
