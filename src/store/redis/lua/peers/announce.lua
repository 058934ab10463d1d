#!lua flags=allow-oom
-- announce: renews the lease of a node as a peer, and returns the state of the locks that it waits for.
-- keys: locks lock_waiters waiter_index presence peers
-- args: now node lease info lock_count names...
--   info: the lease (16 digits), then the node's description of itself
--   names: the locks; then for each wait: owner, lock
-- Returns { now, { lock, owner of this node that is next|'', when the first hold ends|'' if a slot is free } of locks with waiters,
--   { for each wait: member of lock_waiters|nil } }
-- include read_time, to_digits, parse_int, shorten_hold, shorten_leases, find_alive, list_waiters, read_lock, notify_waiter
local NEAR = 20
local node = $node
redis.call('ZADD', @presence, now + $lease, node)
shorten_leases(@presence, @peers, tonumber($lease))
local info = redis.call('HGET', @peers, node)
if not info or info:sub(17) ~= $info then
  redis.call('HSET', @peers, node, (info and info:sub(1, 16) or to_digits(now)) .. $info)
end

-- Returns the owner of this node that is next: the first waiter is, and after it as many more as slots are free.
local function find_next(living, held)
  for at, waiter in ipairs(living) do
    if at > 1 and waiter.slots - held < at then
      return ''
    end
    if waiter.node == node then
      return waiter.owner
    end
  end
  return ''
end

local turns = {}
local waits_at = &names + $lock_count
for n = &names, waits_at - 1 do
  local name = ARGV[n]
  local waiters = list_waiters(name, NEAR)
  remove_waiters(waiters.dead)
  local first = waiters.living[1]
  if first then
    local lock = read_lock(name, first.slots)
    local is_free = lock.held < first.slots
    turns[#turns + 1] = { name, find_next(waiters.living, lock.held), not is_free and lock.soonest or '' }
    -- The first waiter may have missed its turn.
    if is_free and first.node ~= node then
      notify_waiter(name, first)
    end
  end
end
local members = {}
if #ARGV >= waits_at then
  members = redis.call('HMGET', @waiter_index, unpack(ARGV, waits_at))
end
return { now, turns, members }
