-- erase: nothing of a job that has left its place stays: record, meta, history, and its unique key if that is still its own.
-- KEYS 3 job 4 meta 5 errors 9 unique
local function erase(id, meta, key)
  redis.call('HDEL', KEYS[3], id)
  if meta then
    drop_history(KEYS[5], id, meta)
    redis.call('HDEL', KEYS[4], id)
  end
  if key ~= '' and redis.call('HGET', KEYS[9], key) == id then
    redis.call('HDEL', KEYS[9], key)
  end
end
