-- A ticket stands for a job in the ready lists and in the schedule. That of a job that never was in trouble is its id,
-- in the schedule with the digit of its priority behind it. Once a job has a meta, it is id, letter and turn everywhere.
local function tickets_of(id, record, meta)
  if not meta then
    return id, id .. lane_of(record)
  end
  local ticket = id .. string.char(lane_of(record) + 97) .. count(meta, 63)
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
