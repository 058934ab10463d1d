-- A ticket stands for a job in the ready lists and in the schedule. That of a job that never was in trouble is its id,
-- in the schedule with the digit of its priority behind it. Once a job has a meta, it is id, letter and turn everywhere.
-- In the schedule a space and the words of the job follow: so whoever takes it out knows by what it was to be found.
local function tickets_of(id, record, meta)
  local words = ' ' .. words_of(record)
  if not meta then
    return id, id .. lane_of(record) .. words
  end
  local ticket = id .. string.char(lane_of(record) + 97) .. count(meta, 63)
  return ticket, ticket .. words
end

-- Where a job is that is not running: s (scheduled), r (ready), d (done) or b (dead).
local function state_of(due, done, dead, id, record, meta)
  local _, due_ticket = tickets_of(id, record, meta)
  return redis.call('ZSCORE', due, due_ticket) and 's' or redis.call('ZSCORE', done, id) and 'd'
    or redis.call('ZSCORE', dead, id) and 'b' or 'r'
end
