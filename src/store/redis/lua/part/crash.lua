-- count_crash: one more crash in the meta of a job, and in its history. Returns which turn its tickets have.
-- KEYS 7 meta 8 errors
local function count_crash(id, node, why)
  local meta = redis.call('HGET', KEYS[7], id)
  local due, attempts, crashes, failures, turn = text(0), 0, 0, 0, 0
  if meta then
    due, attempts, crashes = meta:match('^' .. ('%d'):rep(16)) or due, count(meta, 33), count(meta, 43)
    failures, turn = count(meta, 53), count(meta, 63)
  end
  failures = one_more(failures)
  local counts = string.format('%010d%010d%010d%010d', attempts, one_more(crashes), failures, turn)
  redis.call('HSET', KEYS[7], id, due .. text(now) .. counts)
  add_history(KEYS[8], id, failures, text(now) .. string.format('%010d', one_more(attempts)) .. node .. why)
  return turn
end
