-- adopt_deferred: makes jobs ready that other nodes deferred and this node handles. They go to the head of their list, and only
-- if no job of a more urgent list is ready. The kinds begin at `kinds_at` of the arguments. Returns whether there may be more.
-- needs: to_digits, push_tickets, index_terms, index_members, find_deferred

-- Returns the most urgent priority that has a ready job, from 0.
local function most_urgent_priority()
  for priority = 0, 3 do
    if redis.call('EXISTS', @ready[priority + 1]) == 1 then
      return priority
    end
  end
  return 3
end

-- Adopted jobs count as due from now on.
local function set_due_now(tickets)
  local ids, changed = {}, {}
  for i, ticket in ipairs(tickets) do
    ids[i] = ticket:sub(1, 16)
  end
  for i, meta in ipairs(redis.call('HMGET', @meta, unpack(ids))) do
    if meta and #meta >= 72 then
      changed[#changed + 1] = ids[i]
      changed[#changed + 1] = to_digits(now) .. meta:sub(17)
    end
  end
  if #changed > 0 then
    redis.call('HSET', @meta, unpack(changed))
  end
end

local function adopt_deferred(kinds_at, max)
  local CHUNK = 1000
  local found, hints, more = find_deferred(kinds_at, max)
  local tickets, members, least_urgent = {}, {}, most_urgent_priority()
  for i = #found, 1, -1 do
    local one, before = found[i], found[i - 1]
    if i > max or one.priority > least_urgent then
      more = true
    elseif not before or before.hint ~= one.hint then
      hints[#hints + 1], tickets[#tickets + 1] = one.hint, one.ticket
      add_due_terms(members, one.ticket, one.due)
    end
  end
  -- There may be one for each kind, and a node may have thousands.
  for from = 1, #hints, CHUNK do
    redis.call('ZREM', @deferred, unpack(hints, from, math.min(from + CHUNK - 1, #hints)))
  end
  if #tickets > 0 then
    redis.call('ZREM', @scheduled, unpack(tickets))
    drop_from_index(members)
    set_due_now(tickets)
    push_tickets('LPUSH', tickets)
  end
  return more
end
