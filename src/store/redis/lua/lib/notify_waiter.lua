-- notify_waiter: tells an owner that it is its turn. The channel of a node is the key of presences, a colon and the node.
local function notify_waiter(name, waiter)
  -- pcall: all writes are done. A user without the right to publish must not make the script fail.
  redis.pcall('SPUBLISH', @presence .. ':' .. waiter.node, 'T' .. waiter.owner .. name)
end

-- Notifies all first waiters for which a slot is free.
local function notify_next(name, living, held)
  for at, waiter in ipairs(living) do
    if waiter.slots - held < at then
      return
    end
    notify_waiter(name, waiter)
  end
end
