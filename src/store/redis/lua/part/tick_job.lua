-- The job of a tick: pushed, unless one of its id is known or another has its unique key.
-- KEYS 1 job 2 due 4-7 ready 12 unique 13,14 gone 15 stale
local put_any = false

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
    redis.call('ZADD', KEYS[2], due, ticket)
  else
    redis.call('RPUSH', KEYS[4 + ticket:byte(17) - 48], id)
  end
  put_any = true
  return ''
end
