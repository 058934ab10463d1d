#!lua flags=allow-oom
-- attend: a node's sign of life in the hall; also tells it how the locks stand that it waits for.
-- KEYS 1 locks 2 line 3 places 4 presence 5 guests
-- ARGV 1 now|'' 2 node 3 lease 4 about the node 5 how many locks follow, then locks, then owner and lock of each that waits
-- Returns { now, { lock, who of this node is next|'', when the first hold ends|'' if one is free } of those with a line,
--   { place|nil of each that waits } }
-- include now, text, alive, line, stand, tell
local NEAR = 20
local node = ARGV[2]
redis.call('ZADD', KEYS[4], now + ARGV[3], node)
local about = redis.call('HGET', KEYS[5], node)
if not about or about:sub(17) ~= ARGV[4] then
  redis.call('HSET', KEYS[5], node, (about and about:sub(1, 16) or text(now)) .. ARGV[4])
end

-- The first in line is next, and behind it as many more as slots are free.
local function next_of(living, held)
  for at, place in ipairs(living) do
    if at > 1 and place.slots - held < at then
      return ''
    end
    if place.node == node then
      return place.owner
    end
  end
  return ''
end

local turns = {}
local places_at = 6 + ARGV[5]
for n = 6, places_at - 1 do
  local name = ARGV[n]
  local line = line_of(name, NEAR)
  step_out(line.dead)
  local first = line.living[1]
  if first then
    local lock = stand(name, first.slots)
    local free = lock.held < first.slots
    turns[#turns + 1] = { name, next_of(line.living, lock.held), not free and lock.soonest or '' }
    -- It has not come although it could: it may not have heard.
    if free and first.node ~= node then
      tell(name, first)
    end
  end
end
local places = {}
if #ARGV >= places_at then
  places = redis.call('HMGET', KEYS[3], unpack(ARGV, places_at))
end
return { now, turns, places }
