-- keep_ack: gives the run that made a job done the number `n`, because the job starts over. Returns whether there is one.
-- needs: to_digits, run_limits, add_run
local ACK_FIELDS = '^(' .. ('.'):rep(36) .. ') (%d+) (%d+) ?(.*)$'
local function keep_ack(id, n, attempt)
  local node, started, duration, output = (redis.call('HGET', @runs, id) or ''):match(ACK_FIELDS)
  redis.call('HDEL', @runs, id)
  if not node then
    return false
  end
  started, duration = math.min(tonumber(started), 9e15), math.min(tonumber(duration), 9e15)
  local times = to_digits(started) .. to_digits(duration)
  add_run(id, n, to_digits(math.min(started + duration, now)) .. string.format('%010d', attempt) .. node .. 'a' .. times .. '00000' .. output)
  return true
end
