-- hints: what others have put off, as put_off has noted it. A hint counts while the job is scheduled for that very moment.
-- KEYS 5 due 14 put_off
local LOOK = 1000

-- Finds so many hints of a kind, or of any if it is ''; those that do not count are gone. Returns whether there may be more.
local function look_for(kind, some, found, gone)
  local from, to = kind == '' and '-' or '[' .. kind .. '\0', kind == '' and '+' or '(' .. kind .. '\1'
  local hints = redis.call('ZRANGE', KEYS[14], from, to, 'BYLEX', 'LIMIT', 0, some)
  for _, hint in ipairs(hints) do
    local place = hint:sub((hint:find('\0', 1, true) or 0) + 1)
    local lane, ticket = place:match('^[0-3]'), place:sub(2, -17)
    local due = redis.call('ZSCORE', KEYS[5], ticket)
    if lane and due and text(due) == place:sub(-16) then
      found[#found + 1] = { hint = hint, place = place, lane = tonumber(lane), ticket = ticket, due = due }
    else
      gone[#gone + 1] = hint
    end
  end
  return #hints == some
end

-- All hints at these kinds, first by priority, then by age: as many of each kind as could be taken. Of any kind, the first by
-- their names. Then those that are gone, and whether there may be more.
local function look_for_all(kinds, most)
  local found, gone, more = {}, {}, false
  local some = math.max(1, math.min(most + 1, math.floor(LOOK / math.max(1, #kinds))))
  for _, kind in ipairs(kinds) do
    more = look_for(kind, kind == '' and LOOK or some, found, gone) or more
  end
  table.sort(found, function(a, b) return a.place < b.place end)
  return found, gone, more
end
