#!lua flags=allow-oom
-- depart: a node leaves the hall, and with it its places in lines and its connections, in bounded steps.
-- KEYS 1 locks 2 line 3 places 4 presence 5 guests 6 connections
-- ARGV 1 now|'' 2 node 3,4 cursors in places, connections|'' when through
-- Returns { now, cursor|'', cursor|'' }
-- include now, alive, line, stand, tell
local STEP = 100
local node = ARGV[2]
redis.call('ZREM', KEYS[4], node)
redis.call('HDEL', KEYS[5], node)

local function step(key, cursor)
  local step = cursor ~= '' and redis.call('HSCAN', key, cursor, 'COUNT', STEP) or { '0', {} }
  return step[1] ~= '0' and step[1] or '', step[2]
end

local next_place, places = step(KEYS[3], ARGV[3])
local own, left = {}, {}
for i = 2, #places, 2 do
  local place = places[i]
  if place:sub(-40, -5) == node then
    own[#own + 1] = place
    left[place:sub(1, -94)] = true
  end
end
step_out(own)
for name in pairs(left) do
  local line = line_of(name, LOOK)
  step_out(line.dead)
  tell_first(name, line.living, stand(name, 1).held)
end
local next_connection, connections = step(KEYS[6], ARGV[4])
for i = 1, #connections, 2 do
  if connections[i + 1] == node then
    redis.call('HDEL', KEYS[6], connections[i])
  end
end
return { now, next_place, next_connection }
