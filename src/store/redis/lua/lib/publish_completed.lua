-- publish_completed: publishes which jobs have completed, in one message: their ids, one after the other. `watched_until` is
-- the field of conf: up to that time a caller waits for jobs of this queue.
local function publish_completed(channel, watched_until, ...)
  if not watched_until or (tonumber(watched_until) or 0) < now then
    return
  end
  local ids = {}
  for _, some in ipairs({ ... }) do
    ids[#ids + 1] = table.concat(some)
  end
  ids = table.concat(ids)
  if ids ~= '' then
    -- pcall: all writes are done. A user without the right to publish must not make the script fail.
    redis.pcall('SPUBLISH', channel .. 'completed', ids)
  end
end
