-- promote: moves what has fallen due to the ready lists. Jobs have up to 17 words each, so these are bounded too.
-- What is moved is the head of the schedule, and of the jobs of each word among the scheduled: it leaves both as a range. To seek
-- each job by itself takes longer, and the more so the more are scheduled.
-- Returns whether there may be more.
-- KEYS 5 due 10-13 ready
local WORDS = 1000

-- What the members of each head end with, of the last ticket that it has: by the head.
local function tails_of(last)
  local heads, tickets, tails = {}, {}, {}
  for head, ticket in pairs(last) do
    heads[#heads + 1], tickets[#tickets + 1] = head, ticket
  end
  for from = 1, #tickets, SOME do
    local dues = redis.call('ZMSCORE', KEYS[5], unpack(tickets, from, math.min(from + SOME - 1, #tickets)))
    for i, due in ipairs(dues) do
      tails[heads[from + i - 1]] = tail_due(tickets[from + i - 1], due)
    end
  end
  return tails
end

-- Those heads that have more than one go as a range, the others by name, together.
local function leave_words(tails, often)
  local members = {}
  for head, tail in pairs(tails) do
    if often[head] then
      redis.call('ZREMRANGEBYLEX', FIND, '[' .. head .. '\0', '[' .. head .. tail)
    else
      members[#members + 1] = head .. tail
    end
  end
  drop_words(members)
end

local function promote(most)
  local found = redis.call('ZRANGE', KEYS[5], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
  local due, seen, last, often = {}, 0, {}, {}
  for at = 1, #found do
    if seen >= WORDS then
      break
    end
    local ticket = found[at]
    local heads = heads_of('s', words_in(ticket))
    for i = 1, #heads do
      often[heads[i]] = last[heads[i]] and true
      last[heads[i]] = ticket
    end
    due[at], seen = ticket, seen + #heads
  end
  if #due == 0 then
    return false
  end
  local tails = tails_of(last)
  redis.call('ZREMRANGEBYRANK', KEYS[5], 0, #due - 1)
  leave_words(tails, often)
  spread('RPUSH', 10, due)
  return #due == most or #due < #found
end
