-- index_terms: lists the members of the job index that belong to a job.
-- A member is s (scheduled) or b (dead), a term, a 0 byte, a time (16 digits: when it is due, or when it died) and the id. So
-- the jobs of one term are neighbours, ordered by time.
-- A term is k and the kind, or t and a tag. A dead job also has g and its group, and the empty term, which all dead jobs have.
-- functions: term_heads, add_terms, ticket_terms, due_tail, add_due_terms, add_dead_terms
-- needs: to_digits

-- Members begin with a head. Many jobs have the same terms, so heads are kept by their terms.
local known_heads = { s = {}, b = {} }
local function term_heads(state, terms)
  local heads, letter = known_heads[state][terms], 'k'
  if not heads then
    heads = {}
    for term in terms:gmatch('[^ ]+') do
      heads[#heads + 1] = state .. letter .. term
      letter = 't'
    end
    known_heads[state][terms] = heads
  end
  return heads
end

local function add_terms(members, state, terms, tail)
  local heads = term_heads(state, terms)
  for i = 1, #heads do
    members[#members + 1] = heads[i] .. tail
  end
end

-- The terms of a scheduled job are in its ticket.
local function ticket_terms(ticket)
  local space = ticket:find(' ', 17, true)
  return space and ticket:sub(space + 1) or ''
end
local function due_tail(ticket, due)
  return '\0' .. to_digits(due) .. ticket:sub(1, 16)
end
local function add_due_terms(members, ticket, due)
  add_terms(members, 's', ticket_terms(ticket), due_tail(ticket, due))
end

-- The terms of a dead job are in its meta.
local function add_dead_terms(members, id, meta)
  local group, tail = meta:sub(73, 88), '\0' .. meta:sub(17, 32) .. id
  members[#members + 1] = 'b' .. tail
  members[#members + 1] = group ~= '' and 'bg' .. group .. tail or nil
  add_terms(members, 'b', meta:sub(89), tail)
end
