-- insert_cancelled: ends a job that has left its place, counts that, and frees its unique key. `meta` is as it was, or nil. Without a record
-- there is no job to keep.
-- needs: to_digits, record_fields, count_event
local UNIQUE_KEY = '^' .. FIELD:rep(7) .. '([^\t\n]*)'
local function insert_cancelled(id, record, meta, keep)
  if record == '' then
    return
  end
  local digits = meta and meta:match('^' .. ('%d'):rep(72)) or ('0'):rep(72)
  redis.call('HSET', @meta, id, digits:sub(1, 16) .. to_digits(now) .. digits:sub(33))
  redis.call('ZADD', @cancelled, now + keep, id)
  count_event(@counted_history, '06', 1)
  local unique_key = record:match(UNIQUE_KEY) or ''
  if unique_key ~= '' and redis.call('HGET', @unique, unique_key) == id then
    redis.call('HDEL', @unique, unique_key)
  end
end
