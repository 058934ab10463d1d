-- pick_up: makes ready what others have put off and the node knows, first by priority, then by age: at the head of its list, where
-- it came from, and only if nothing more urgent is ready. A note counts while the job is scheduled for that very moment.
-- Returns whether there may be more.
-- KEYS 5 due 10-13 ready 14 put_off
-- ARGV 8... kinds; '' is any
local LOOK = 1000

-- The number of the first ready list that has anything, from 0.
local function most_urgent()
  for list = 10, 13 do
    if redis.call('EXISTS', KEYS[list]) == 1 then
      return list - 10
    end
  end
  return 3
end

-- Of a kind so many notes; of those that count what the schedule has.
local function look_for(kind, some, found, gone)
  local from, to = kind == '' and '-' or '[' .. kind .. '\0', kind == '' and '+' or '(' .. kind .. '\1'
  local notes = redis.call('ZRANGE', KEYS[14], from, to, 'BYLEX', 'LIMIT', 0, some)
  for _, note in ipairs(notes) do
    local rest = note:sub((note:find('\0', 1, true) or 0) + 1)
    local ticket = rest:sub(2, -17)
    local due = redis.call('ZSCORE', KEYS[5], ticket)
    if due and text(due) == rest:sub(-16) then
      found[#found + 1] = { note = note, rank = rest, lane = tonumber(rest:sub(1, 1)) or 2, ticket = ticket, due = due }
    else
      gone[#gone + 1] = note
    end
  end
  return #notes == some
end

local function pick_up(most)
  local found, gone, tickets, members, unseen = {}, {}, {}, {}, false
  local some, upto = math.max(1, math.floor(LOOK / math.max(1, #ARGV - 7))), most_urgent()
  for at = 8, #ARGV do
    unseen = look_for(ARGV[at], some, found, gone) or unseen
  end
  table.sort(found, function(a, b) return a.rank < b.rank end)
  for i = #found, 1, -1 do
    local one = found[i]
    if i > most or one.lane > upto then
      unseen = true
    else
      gone[#gone + 1], tickets[#tickets + 1] = one.note, one.ticket
      words_due(members, one.ticket, one.due)
    end
  end
  if #gone > 0 then
    redis.call('ZREM', KEYS[14], unpack(gone))
  end
  if #tickets > 0 then
    redis.call('ZREM', KEYS[5], unpack(tickets))
    drop_words(members)
    spread('LPUSH', 10, tickets)
  end
  return unseen
end
