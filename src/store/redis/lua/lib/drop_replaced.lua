-- drop_replaced: removes jobs that a push replaces. Each is a table of id, record and meta.
-- needs: record_fields, remove_waiting, drop_runs, drop_progress, choose_removed, publish_completed
local function drop_replaced(old, remember)
  local ids = {}
  for i, job in ipairs(old) do
    local id, record, meta = job[1], job[2], job[3]
    ids[i] = id
    remove_waiting(id, record, meta)
    redis.call('HDEL', @job, id)
    if meta then
      drop_runs({ id }, { meta })
      redis.call('HDEL', @meta, id)
    end
    drop_progress({ id })
    redis.call('SADD', choose_removed(remember), id)
  end
  if #ids > 0 then
    publish_completed($channel, redis.call('HGET', @conf, 'watched_until'), ids)
  end
end
