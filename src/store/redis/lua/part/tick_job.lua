-- The job of a tick: pushed, unless one of its id is known or another has its unique key.
-- KEYS 1 job 2 due 4-7 ready 8 conf 11 held 12 unique 13,14 gone 15 stale 17 find
local put_jobs = 0

-- Whether the queue has room for jobs that are so many and begin at this place in ARGV.
local function fits(at, jobs)
  local bytes = 0
  for n = 0, jobs - 1 do
    bytes = bytes + bytes_of(ARGV[at + 1 + 5 * n])
  end
  return jobs == 0 or not full(KEYS[8], KEYS[11], KEYS[2], KEYS[15], 4, jobs, bytes)
end

local function holder_of(key)
  local holder = key ~= '' and redis.call('HGET', KEYS[12], key)
  return holder and redis.call('HEXISTS', KEYS[1], holder) == 1 and holder
end

local function put(id, record, due, ticket, key)
  local other = known_of({ id })[1] or holder_of(key)
  if other then
    return other
  end
  redis.call('HSET', KEYS[1], id, record)
  if key ~= '' then
    redis.call('HSET', KEYS[12], key, id)
  end
  if due ~= '' and tonumber(due) > now then
    schedule(KEYS[2], due, ticket)
  else
    redis.call('RPUSH', KEYS[4 + ticket:byte(17) - 48], id)
  end
  add(KEYS[8], 'bytes', bytes_of(record))
  put_jobs = put_jobs + 1
  return ''
end
