-- complete_ticket: returns a ticket of the schedule with its terms. A node that cannot read the record sends it without them.
-- needs: record_fields
local function complete_ticket(ticket)
  if ticket:sub(-1) ~= ' ' then
    return ticket
  end
  return ticket .. read_terms(redis.call('HGET', @job, ticket:sub(1, 16)) or '')
end
