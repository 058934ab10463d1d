-- pick_up: makes ready what others have put off and the node knows: at the head of its list, where it came from, and only if
-- nothing more urgent is ready. Returns whether there may be more.
-- KEYS 5 due 7 meta 10-13 ready 14 put_off
-- ARGV 8... kinds; '' is any

-- The number of the first ready list that has anything, from 0.
local function most_urgent()
  for list = 10, 13 do
    if redis.call('EXISTS', KEYS[list]) == 1 then
      return list - 10
    end
  end
  return 3
end

-- They could be claimed from now on, whatever they were put off until.
local function due_now(tickets)
  local ids, changed = {}, {}
  for i, ticket in ipairs(tickets) do
    ids[i] = ticket:sub(1, 16)
  end
  for i, meta in ipairs(redis.call('HMGET', KEYS[7], unpack(ids))) do
    if meta and #meta >= 72 then
      changed[#changed + 1] = ids[i]
      changed[#changed + 1] = text(now) .. meta:sub(17)
    end
  end
  if #changed > 0 then
    redis.call('HSET', KEYS[7], unpack(changed))
  end
end

local function pick_up(most)
  local found, gone, more = look_for_all({ unpack(ARGV, 8) }, most)
  local tickets, members, upto = {}, {}, most_urgent()
  for i = #found, 1, -1 do
    local one, before = found[i], found[i - 1]
    if i > most or one.lane > upto then
      more = true
    elseif not before or before.hint ~= one.hint then
      gone[#gone + 1], tickets[#tickets + 1] = one.hint, one.ticket
      words_due(members, one.ticket, one.due)
    end
  end
  if #gone > 0 then
    redis.call('ZREM', KEYS[14], unpack(gone))
  end
  if #tickets > 0 then
    redis.call('ZREM', KEYS[5], unpack(tickets))
    drop_words(members)
    due_now(tickets)
    spread('LPUSH', 10, tickets)
  end
  return more
end
