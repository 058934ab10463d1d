-- find_deferred: finds jobs that other nodes deferred. A hint counts while the job is scheduled for exactly its time.
-- needs: to_digits
local LOOK_MAX = 1000

-- Finds at most `max` hints of a kind, or of any kind if it is ''. Outdated hints go to `outdated`.
-- Returns whether there may be more.
local function find_deferred_kind(kind, max, found, outdated)
  local from, to = kind == '' and '-' or '[' .. kind .. '\0', kind == '' and '+' or '(' .. kind .. '\1'
  local hints = redis.call('ZRANGE', @deferred, from, to, 'BYLEX', 'LIMIT', 0, max)
  for _, hint in ipairs(hints) do
    local order = hint:sub((hint:find('\0', 1, true) or 0) + 1)
    local priority, ticket = order:match('^[0-3]'), order:sub(2, -17)
    local due = redis.call('ZSCORE', @scheduled, ticket)
    if priority and due and to_digits(due) == order:sub(-16) then
      found[#found + 1] = { hint = hint, order = order, priority = tonumber(priority), ticket = ticket, due = due }
    else
      outdated[#outdated + 1] = hint
    end
  end
  return #hints == max
end

-- Returns the hints at these kinds, ordered by priority and age, as many of each kind as could be taken; then the outdated
-- hints; then whether there may be more.
local function find_deferred(kinds, max)
  local found, outdated, more = {}, {}, false
  local max_each = math.max(1, math.min(max + 1, math.floor(LOOK_MAX / math.max(1, #kinds))))
  for _, kind in ipairs(kinds) do
    more = find_deferred_kind(kind, kind == '' and LOOK_MAX or max_each, found, outdated) or more
  end
  table.sort(found, function(a, b) return a.order < b.order end)
  return found, outdated, more
end
