#!lua flags=allow-oom
-- announce: returns the state of the locks of ActionHero that a node waits for.
-- keys: locks lock_waiters waiter_index presence lock_keys...
-- args: now node names...
-- Returns { now, { lock, owner of this node that is first|'', how long until a look is useful, 0 if it is free } of locks with waiters }
-- include read_time, find_alive, list_waiters, notify_waiter, read_foreign_lock
local NEAR = 20
local node, turns = $node, {}
for n = 1, #$names do
  local name = $names[n]
  local waiters = list_waiters(name, NEAR)
  remove_waiters(waiters.dead)
  local first = waiters.living[1]
  if first then
    local lock = read_foreign_lock(@lock_keys[n], name)
    turns[#turns + 1] = { name, first.node == node and first.owner or '', lock.left }
    -- The first waiter may have missed its turn.
    if not lock.holder and first.node ~= node then
      notify_waiter(name, first)
    end
  end
end
return { now, turns }
