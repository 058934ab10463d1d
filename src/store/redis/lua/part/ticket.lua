-- A ticket stands for a job in the ready lists and in the schedule. That of a job that never was in trouble is its id,
-- in the schedule with the digit of its priority behind it. Once a job has a meta, it is id, letter and turn everywhere.
local function tickets_of(id, record, meta)
  if not meta then
    return id, id .. record:sub(2, 2)
  end
  local ticket = id .. string.char(record:byte(2) + 49) .. tonumber(meta:sub(63, 72))
  return ticket, ticket
end

-- Takes a job that waits out of its place; in a ready list its ticket stays, marked as stale.
local function unseat(due, stale, conf, id, record, meta)
  local ready_ticket, due_ticket = tickets_of(id, record, meta)
  if redis.call('ZREM', due, due_ticket) == 0 then
    redis.call('SADD', stale, ready_ticket)
    redis.call('HSET', conf, 'stale', 1)
  end
end
