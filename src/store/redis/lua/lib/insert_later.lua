-- insert_later: inserts the scheduled jobs of a batch; from `due_at` to `last` are, for each job, due time and ticket.
-- Returns whether one of them is due before all that were scheduled.
-- needs: to_digits, index_terms, index_members
local function insert_later(due_at, last)
  local CHUNK, later, members, is_first = 1000, {}, {}, false
  local first = tonumber(redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2]) or math.huge
  local text, due, digits
  for n = due_at, last, 2 do
    -- '+n' is n microseconds from now, 'n' is a time. Most of a batch have the same, and digits of a number are costly to make.
    if ARGV[n] ~= text then
      text = ARGV[n]
      due = text:byte(1) == 43 and now + text or tonumber(text)
      digits = to_digits(due)
    end
    local ticket = ARGV[n + 1]
    if due <= now then
      redis.call('RPUSH', @ready[ticket:byte(17) - 47], ticket:sub(1, 16))
    else
      later[#later + 1] = digits
      later[#later + 1] = ticket
      add_terms(members, 's', ticket_terms(ticket), '\0' .. digits .. ticket:sub(1, 16))
    end
    is_first = is_first or due < first
  end
  for from = 1, #later, CHUNK do
    redis.call('ZADD', @scheduled, unpack(later, from, math.min(from + CHUNK - 1, #later)))
  end
  add_to_index(members)
  return is_first
end
