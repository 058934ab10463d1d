-- find_deferred: finds jobs that other nodes deferred. A hint counts while the job is scheduled for exactly its time.
-- needs: to_digits
local SCAN_MAX = 1000

-- Finds at most `max` hints of this range. Outdated hints go to `outdated`. Returns whether there may be more.
local function find_deferred_range(from, to, max, found, outdated)
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

-- As above, of a kind, of any kind if it is '', or of any but one if it is a zero byte and that kind.
local function find_deferred_kind(kind, max, found, outdated)
  if kind == '' then
    return find_deferred_range('-', '+', SCAN_MAX, found, outdated)
  end
  if kind:byte() == 0 then
    local excluded = kind:sub(2)
    local before = find_deferred_range('-', '(' .. excluded .. '\0', SCAN_MAX, found, outdated)
    return find_deferred_range('[' .. excluded .. '\1', '+', SCAN_MAX, found, outdated) or before
  end
  return find_deferred_range('[' .. kind .. '\0', '(' .. kind .. '\1', max, found, outdated)
end

-- Returns the hints at the kinds from `kinds_at` of the arguments on, ordered by priority and age, as many of each kind as could
-- be taken; then the outdated hints; then whether there may be more.
local function find_deferred(kinds_at, max)
  local found, outdated, more = {}, {}, false
  local max_each = math.max(1, math.min(max + 1, math.floor(SCAN_MAX / math.max(1, #ARGV - kinds_at + 1))))
  for at = kinds_at, #ARGV do
    more = find_deferred_kind(ARGV[at], max_each, found, outdated) or more
  end
  table.sort(found, function(a, b) return a.order < b.order end)
  return found, outdated, more
end
