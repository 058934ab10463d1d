-- The line before a lock. A place is name, \0, turn (16 digits), owner (36), node (36), slots (4 digits):
-- so the places of one lock stand together, in the order of their turns.
-- KEYS 2 line 3 places 4 presence

-- Most places that one step looks at.
local LOOK = 100

-- The first places, of nodes that are there and of dead ones. Who speaks is there.
local function line_of(name, most, speaker)
  local places = redis.call('ZRANGE', KEYS[2], '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX', 'LIMIT', 0, most)
  local line = { living = {}, dead = {}, more = #places == most }
  if #places == 0 then
    return line
  end
  local nodes = {}
  for i, place in ipairs(places) do
    nodes[i] = place:sub(-40, -5)
  end
  local is = alive(nodes)
  for i, place in ipairs(places) do
    local node = nodes[i]
    if is[node] or node == speaker then
      local slots = tonumber(place:sub(-4)) or 1
      line.living[#line.living + 1] = { place = place, owner = place:sub(-76, -41), node = node, slots = slots }
    else
      line.dead[#line.dead + 1] = place
    end
  end
  return line
end

-- Takes places out of their lines.
local function step_out(places)
  if #places == 0 then
    return
  end
  local fields = {}
  for i, place in ipairs(places) do
    fields[i] = place:sub(-76, -41) .. place:sub(1, -94)
  end
  redis.call('ZREM', KEYS[2], unpack(places))
  redis.call('HDEL', KEYS[3], unpack(fields))
end
