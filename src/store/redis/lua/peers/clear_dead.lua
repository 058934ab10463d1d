#!lua flags=allow-oom
-- clear_dead: deletes holds that ended long ago, and waits, connections and info of dead peers. One call deletes a bounded number.
-- keys: locks lock_waiters waiter_index presence peers connections
-- args: now lock_cursor wait_cursor connection_cursor
-- Returns { now, cursor, cursor, cursor }
-- include read_time, to_digits, parse_int, shorten_hold, find_alive, list_waiters, read_lock
local PAGE, LONG_AGO = 100, now - 60 * 1000000
local dead_peers = redis.call('ZRANGE', @presence, '-inf', LONG_AGO, 'BYSCORE', 'LIMIT', 0, PAGE)
if #dead_peers > 0 then
  redis.call('ZREM', @presence, unpack(dead_peers))
  redis.call('HDEL', @peers, unpack(dead_peers))
end

-- How many slots this call may look at.
local slots_left = 2000
local locks = redis.call('HSCAN', @locks, $lock_cursor, 'COUNT', PAGE)
for i = 1, #locks[2], 2 do
  local field, value = locks[2][i], locks[2][i + 1]
  local name, slot = field:match('^(.*)%z(%d*)$')
  if slot == '' then
    -- The mark goes once no owner holds the lock or waits for it, dead or alive.
    local waiters = list_waiters(name, 1)
    local lock = slots_left > 0 and #waiters.living + #waiters.dead == 0 and read_lock(name, 1)
    slots_left = slots_left - (lock and lock.width or 0)
    slot, value = lock and lock.held == 0 and slot, ''
  end
  value = slot and slot ~= '' and value ~= '' and shorten_hold(field, value) or value
  if slot and (tonumber(value:sub(1, 16)) or 0) < LONG_AGO then
    redis.call('HDEL', @locks, field)
  end
end

-- Returns those of these pairs that belong to dead nodes.
local function filter_dead(pairs_of, node_of)
  local nodes, dead = {}, {}
  for i = 2, #pairs_of, 2 do
    nodes[#nodes + 1] = node_of(pairs_of[i])
  end
  local alive = #nodes > 0 and find_alive(nodes)
  for i, node in ipairs(nodes) do
    if not alive[node] then
      dead[#dead + 1] = pairs_of[2 * i - 1]
      dead[#dead + 1] = pairs_of[2 * i]
    end
  end
  return dead
end

local waits = redis.call('HSCAN', @waiter_index, $wait_cursor, 'COUNT', PAGE)
local dead = filter_dead(waits[2], function(member) return member:sub(-40, -5) end)
for i = 1, #dead, 2 do
  redis.call('HDEL', @waiter_index, dead[i])
  redis.call('ZREM', @lock_waiters, dead[i + 1])
end
local connections = redis.call('HSCAN', @connections, $connection_cursor, 'COUNT', PAGE)
dead = filter_dead(connections[2], function(node) return node end)
for i = 1, #dead, 2 do
  redis.call('HDEL', @connections, dead[i])
end
return { now, locks[1], waits[1], connections[1] }
