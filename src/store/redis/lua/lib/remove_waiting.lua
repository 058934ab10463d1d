-- remove_waiting: removes a scheduled or ready job from its place.
-- needs: make_tickets, index_terms, index_members

-- Removes a ticket from the schedule. Returns whether it was there.
local function remove_scheduled(ticket)
  local due = redis.call('ZSCORE', @scheduled, ticket)
  if not due then
    return false
  end
  local members = {}
  add_due_terms(members, ticket, due)
  redis.call('ZREM', @scheduled, ticket)
  drop_from_index(members)
  return true
end

-- Marks a ticket of a ready list as stale; to find it in a long list would cost too much. A ticket among the last ones is
-- removed at once: otherwise jobs that are replaced again and again while no node claims would pile up.
-- One mark stands for one ticket. If an id was forgotten and pushed again, an older ticket of the same text goes.
local LAST = 100
local function mark_stale(list, ticket)
  if redis.call('SISMEMBER', @stale, ticket) == 0 and redis.call('LPOS', list, ticket, 'RANK', -1, 'MAXLEN', LAST) then
    redis.call('LREM', list, -1, ticket)
    return
  end
  if redis.call('SADD', @stale, ticket) == 0 then
    redis.call('LREM', list, 1, ticket)
  end
  redis.call('HSET', @conf, 'has_stale', 1)
end

local function remove_waiting(id, record, meta)
  local ready_ticket, due_ticket = make_tickets(id, record, meta)
  if not remove_scheduled(due_ticket) then
    mark_stale(@ready[read_priority(record) + 1], ready_ticket)
  end
end
