#!lua
-- record_progress: keeps progress and log lines of running attempts, each only if the node still holds the job under its fence.
-- keys: conf running progress
-- args: now updates...
--   updates: for each job: id, held value, progress|'', number of log lines, the lines
-- Returns { now, { id of each job that was not held } }
-- include read_time, check_format, log_limits
local lost, at = {}, &updates
while at <= #ARGV do
  local id, value, progress, lines = unpack(ARGV, at, at + 3)
  local first = at + 4
  at = first + tonumber(lines)
  if (redis.call('HGET', @running, id) or ''):sub(1, 65) ~= value then
    lost[#lost + 1] = id
  else
    local last = tonumber(redis.call('HGET', @progress, id .. 'n')) or 0
    local fields, old = progress ~= '' and { id .. 'p', progress } or {}, {}
    for n = first, at - 1 do
      last = last + 1
      fields[#fields + 1] = id .. 'l' .. last
      fields[#fields + 1] = ARGV[n]
      if last > LOG_LINES_MAX then
        old[#old + 1] = id .. 'l' .. (last - LOG_LINES_MAX)
      end
    end
    redis.call('HSET', @progress, id .. 'n', last, unpack(fields))
    if #old > 0 then
      redis.call('HDEL', @progress, unpack(old))
    end
  end
end
return { now, lost }
