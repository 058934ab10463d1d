#!lua flags=allow-oom
-- clear: lets go of what ended long ago and of what the dead have left in the hall, in bounded steps.
-- KEYS 1 locks 2 line 3 places 4 presence 5 guests 6 connections
-- ARGV 1 now|'' 2-4 cursors in locks, places, connections
-- Returns { now, cursor, cursor, cursor }
-- include now, alive, line, stand
local STEP, LONG_AGO = 100, now - 60 * 1000000
local gone = redis.call('ZRANGE', KEYS[4], '-inf', LONG_AGO, 'BYSCORE', 'LIMIT', 0, STEP)
if #gone > 0 then
  redis.call('ZREM', KEYS[4], unpack(gone))
  redis.call('HDEL', KEYS[5], unpack(gone))
end

-- Slots that are looked at in one step.
local left = 2000
local locks = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', STEP)
for i = 1, #locks[2], 2 do
  local field, value = locks[2][i], locks[2][i + 1]
  local name, slot = field:match('^(.*)%z(%d*)$')
  if slot == '' then
    -- How many slots it has is worth nothing once nobody holds it or waits, dead or alive.
    local line = line_of(name, 1)
    local lock = left > 0 and #line.living + #line.dead == 0 and stand(name, 1)
    left = left - (lock and lock.width or 0)
    slot, value = lock and lock.held == 0 and slot, ''
  end
  if slot and (tonumber(value:sub(1, 16)) or 0) < LONG_AGO then
    redis.call('HDEL', KEYS[1], field)
  end
end

-- Of these pairs, those of dead nodes.
local function of_dead(pairs_of, node_of)
  local nodes, dead = {}, {}
  for i = 2, #pairs_of, 2 do
    nodes[#nodes + 1] = node_of(pairs_of[i])
  end
  local is = #nodes > 0 and alive(nodes)
  for i, node in ipairs(nodes) do
    if not is[node] then
      dead[#dead + 1] = pairs_of[2 * i - 1]
      dead[#dead + 1] = pairs_of[2 * i]
    end
  end
  return dead
end

local places = redis.call('HSCAN', KEYS[3], ARGV[3], 'COUNT', STEP)
local dead = of_dead(places[2], function(place) return place:sub(-40, -5) end)
for i = 1, #dead, 2 do
  redis.call('HDEL', KEYS[3], dead[i])
  redis.call('ZREM', KEYS[2], dead[i + 1])
end
local connections = redis.call('HSCAN', KEYS[6], ARGV[4], 'COUNT', STEP)
dead = of_dead(connections[2], function(node) return node end)
for i = 1, #dead, 2 do
  redis.call('HDEL', KEYS[6], dead[i])
end
return { now, locks[1], places[1], connections[1] }
