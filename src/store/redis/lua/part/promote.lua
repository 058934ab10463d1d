-- promote: moves what has fallen due to the ready lists. Jobs have up to 17 words each, so these are bounded too.
-- What is moved is the head of the schedule, and of the jobs of each word among the scheduled: it leaves both as a range. To seek
-- each job by itself takes longer, and the more so the more are scheduled.
-- Returns whether there may be more.
-- KEYS 5 due 10-13 ready
local WORDS = 1000

-- By the last ticket of each head, and which heads have more than one.
local function leave_words(due, last, often)
  local heads, tickets, members = {}, {}, {}
  for head, ticket in pairs(last) do
    heads[#heads + 1], tickets[#tickets + 1] = head, ticket
  end
  for i, at in ipairs(#heads > 0 and redis.call('ZMSCORE', due, unpack(tickets)) or {}) do
    local head, tail = heads[i], tail_due(tickets[i], at)
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
  leave_words(KEYS[5], last, often)
  redis.call('ZREMRANGEBYRANK', KEYS[5], 0, #due - 1)
  spread('RPUSH', 10, due)
  return #due == most or #due < #found
end
