-- read_state: returns the state of a job that is not running: s (scheduled), r (ready), d (done), b (dead) or c (cancelled).
-- needs: make_tickets
local function read_state(id, record, meta)
  local _, due_ticket = make_tickets(id, record, meta)
  return redis.call('ZSCORE', @scheduled, due_ticket) and 's' or redis.call('ZSCORE', @done, id) and 'd'
    or redis.call('ZSCORE', @dead, id) and 'b' or redis.call('ZSCORE', @cancelled, id) and 'c' or 'r'
end
