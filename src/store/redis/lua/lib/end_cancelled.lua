-- end_cancelled: ends a cancelled job that is taken back from a dead node, with its bytes, and publishes that.
-- needs: increment_field, record_fields, insert_cancelled, publish_completed
local function end_cancelled(id, keep)
  local record = redis.call('HGET', @job, id) or ''
  insert_cancelled(id, record, redis.call('HGET', @meta, id), keep)
  increment_field(@conf, 'bytes', -args_bytes(record))
  publish_completed($channel, redis.call('HGET', @conf, 'watched_until'), { id })
end
