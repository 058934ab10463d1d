-- full: the limits of a queue, if so many more jobs and bytes would be too many; and whether it has any.
local function full(conf, held, due, stale, first_list, jobs, bytes)
  local state = redis.call('HMGET', conf, 'limit_jobs', 'limit_bytes', 'bytes')
  local most_jobs, most_bytes = tonumber(state[1]), tonumber(state[2])
  if not most_jobs and not most_bytes then
    return nil, 0
  end
  local is = redis.call('HLEN', held) + redis.call('ZCARD', due) - redis.call('SCARD', stale)
  for list = first_list, first_list + 3 do
    is = is + redis.call('LLEN', KEYS[list])
  end
  local too_many = most_jobs and jobs > 0 and is + jobs > most_jobs
  local too_much = most_bytes and bytes > 0 and (tonumber(state[3]) or 0) + bytes > most_bytes
  if too_many or too_much then
    return { now, 'full', state[1] or '', state[2] or '' }, 1
  end
  return nil, 1
end
