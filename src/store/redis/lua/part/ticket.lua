-- A ticket stands for a job in the ready lists and in the schedule. That of a job that never was in trouble is its id,
-- in the schedule with the digit of its priority behind it. Once a job has a meta, it is id, letter and turn everywhere.
local function tickets_of(id, record, meta)
  if not meta then
    return id, id .. lane_of(record)
  end
  local ticket = id .. string.char(lane_of(record) + 97) .. count(meta, 63)
  return ticket, ticket
end

-- Where a job is that is not running: s (scheduled), r (ready), d (done) or b (dead).
local function state_of(due, done, dead, id, record, meta)
  local _, due_ticket = tickets_of(id, record, meta)
  return redis.call('ZSCORE', due, due_ticket) and 's' or redis.call('ZSCORE', done, id) and 'd'
    or redis.call('ZSCORE', dead, id) and 'b' or 'r'
end

-- A ticket stays in its ready list, marked as stale. An id that was forgotten and came again may have left one of the same
-- name there before: one mark stands for one ticket, so the other goes.
local function mark_stale(stale, conf, list, ticket)
  if redis.call('SADD', stale, ticket) == 0 then
    redis.call('LREM', list, 1, ticket)
  end
  redis.call('HSET', conf, 'stale', 1)
end

-- Takes a job that waits out of its place: the schedule, or one of the ready lists, of which this is the number of the first.
local function unseat(due, stale, conf, first_list, id, record, meta)
  local ready_ticket, due_ticket = tickets_of(id, record, meta)
  if redis.call('ZREM', due, due_ticket) == 0 then
    mark_stale(stale, conf, KEYS[first_list + lane_of(record)], ready_ticket)
  end
end
