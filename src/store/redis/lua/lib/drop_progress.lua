-- drop_progress: deletes progress, log lines and results of jobs.
-- needs: log_limits
local function drop_progress(ids)
  if #ids == 0 or redis.call('EXISTS', @progress) == 0 then
    return
  end
  local lasts = {}
  for i, id in ipairs(ids) do
    lasts[i] = id .. 'n'
  end
  lasts = redis.call('HMGET', @progress, unpack(lasts))
  for i, id in ipairs(ids) do
    if lasts[i] then
      local last, fields = tonumber(lasts[i]) or 0, { id .. 'n', id .. 'p', id .. 'r' }
      for n = math.max(1, last - LOG_LINES_MAX + 1), last do
        fields[#fields + 1] = id .. 'l' .. n
      end
      redis.call('HDEL', @progress, unpack(fields))
    end
  end
end
