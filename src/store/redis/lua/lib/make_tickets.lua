-- make_tickets: returns the tickets of a job in a ready list and in the schedule.
-- A ticket represents a job there. The ticket of a job without a meta is its id; in the schedule its priority digit follows.
-- The ticket of a job with a meta is id, priority letter and ticket number in both. In the schedule a space and the terms of the job
-- follow, so that a script that removes the ticket knows which members of the index to remove.
-- needs: record_fields
local function make_tickets(id, record, meta)
  local terms = ' ' .. read_terms(record)
  if not meta then
    return id, id .. read_priority(record) .. terms
  end
  local ticket = id .. string.char(read_priority(record) + 97) .. read_count(meta, 63)
  return ticket, ticket .. terms
end
