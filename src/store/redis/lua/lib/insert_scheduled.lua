-- insert_scheduled: adds a job to the schedule and to the index.
-- needs: index_terms, index_members
local function insert_scheduled(due, ticket)
  local members = {}
  add_due_terms(members, ticket, due)
  redis.call('ZADD', @scheduled, due, ticket)
  add_to_index(members)
end
