-- promote_due: moves due jobs to the ready lists. Returns whether there may be more.
-- Promoted jobs are the head of the schedule, and of the scheduled jobs of each term. So they leave both as ranges: to look up
-- each job separately takes longer, and grows with the size of the schedule.
-- needs: push_tickets, index_terms, index_members
local TERMS_MAX = 1000

-- Returns for each head the tail of its last member, given its last ticket.
local function last_tails(last)
  local CHUNK, heads, tickets, tails = 500, {}, {}, {}
  for head, ticket in pairs(last) do
    heads[#heads + 1], tickets[#tickets + 1] = head, ticket
  end
  for from = 1, #tickets, CHUNK do
    local dues = redis.call('ZMSCORE', @scheduled, unpack(tickets, from, math.min(from + CHUNK - 1, #tickets)))
    for i, due in ipairs(dues) do
      tails[heads[from + i - 1]] = due_tail(tickets[from + i - 1], due)
    end
  end
  return tails
end

-- A head with several members is removed as a range, the others by name, together.
local function drop_promoted_terms(tails, several)
  local members = {}
  for head, tail in pairs(tails) do
    if several[head] then
      redis.call('ZREMRANGEBYLEX', @job_index, '[' .. head .. '\0', '[' .. head .. tail)
    else
      members[#members + 1] = head .. tail
    end
  end
  drop_from_index(members)
end

local function promote_due(max)
  local found = redis.call('ZRANGE', @scheduled, '-inf', now, 'BYSCORE', 'LIMIT', 0, max)
  local due, seen, last, several = {}, 0, {}, {}
  for at = 1, #found do
    -- A job has up to 17 terms, so the terms are bounded too.
    if seen >= TERMS_MAX then
      break
    end
    local ticket = found[at]
    local heads = term_heads('s', ticket_terms(ticket))
    for i = 1, #heads do
      several[heads[i]] = last[heads[i]] and true
      last[heads[i]] = ticket
    end
    due[at], seen = ticket, seen + #heads
  end
  if #due == 0 then
    return false
  end
  local tails = last_tails(last)
  redis.call('ZREMRANGEBYRANK', @scheduled, 0, #due - 1)
  drop_promoted_terms(tails, several)
  push_tickets('RPUSH', due)
  return #due == max or #due < #found
end
