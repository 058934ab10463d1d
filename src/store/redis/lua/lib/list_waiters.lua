-- list_waiters: lists those that wait for a lock. A waiter is the lock's name, \0, turn (16 digits), owner (36), node (36) and
-- slots (4 digits), so that the waiters of one lock are neighbours, in the order of their turns.
-- needs: find_alive

-- Most waiters that one script looks at.
local WAITERS_SCAN_MAX = 100

-- Returns the first waiters, those of living nodes and those of dead ones. The node that calls is alive.
local function list_waiters(name, max, caller)
  local members = redis.call('ZRANGE', @lock_waiters, '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX', 'LIMIT', 0, max)
  local waiters = { living = {}, dead = {}, more = #members == max }
  if #members == 0 then
    return waiters
  end
  local nodes = {}
  for i, member in ipairs(members) do
    nodes[i] = member:sub(-40, -5)
  end
  local alive = find_alive(nodes)
  for i, member in ipairs(members) do
    local node = nodes[i]
    if alive[node] or node == caller then
      local slots = tonumber(member:sub(-4)) or 1
      waiters.living[#waiters.living + 1] = { member = member, owner = member:sub(-76, -41), node = node, slots = slots }
    else
      waiters.dead[#waiters.dead + 1] = member
    end
  end
  return waiters
end

local function remove_waiters(members)
  if #members == 0 then
    return
  end
  local fields = {}
  for i, member in ipairs(members) do
    fields[i] = member:sub(-76, -41) .. member:sub(1, -94)
  end
  redis.call('ZREM', @lock_waiters, unpack(members))
  redis.call('HDEL', @waiter_index, unpack(fields))
end
