#!lua flags=allow-oom
-- withdraw: removes a node from the peers, with its waits for locks and its connections. One call removes a bounded number.
-- keys: locks lock_waiters waiter_index presence peers connections
-- args: now node wait_cursor connection_cursor
--   cursors: '' once all are removed
-- Returns { now, cursor|'', cursor|'' }
-- include read_time, to_digits, parse_int, shorten_hold, find_alive, list_waiters, read_lock, notify_waiter
local node = $node
redis.call('ZREM', @presence, node)
redis.call('HDEL', @peers, node)

local function read_page(key, cursor)
  local page = cursor ~= '' and redis.call('HSCAN', key, cursor, 'COUNT', 100) or { '0', {} }
  return page[1] ~= '0' and page[1] or '', page[2]
end

local next_wait, waits = read_page(@waiter_index, $wait_cursor)
local own, names = {}, {}
for i = 2, #waits, 2 do
  local member = waits[i]
  if member:sub(-40, -5) == node then
    own[#own + 1] = member
    names[member:sub(1, -94)] = true
  end
end
remove_waiters(own)
for name in pairs(names) do
  local waiters = list_waiters(name, WAITERS_SCAN_MAX)
  remove_waiters(waiters.dead)
  notify_next(name, waiters.living, read_lock(name, 1).held)
end
local next_connection, connections = read_page(@connections, $connection_cursor)
for i = 1, #connections, 2 do
  if connections[i + 1] == node then
    redis.call('HDEL', @connections, connections[i])
  end
end
return { now, next_wait, next_connection }
