-- deliver_to_first_idle: delivers the pushed job to the first of these idle nodes that has a lease and receives it, unless another
-- job would be claimed before it. Returns the node, the fence and how many jobs conf says that the node holds; or nil.
-- `last_fence` is the field of conf; after `before` others `conf` has how many jobs each of these nodes holds.
-- needs: parse_int

-- Publishes on the channel of the kind, or on that of a node that accepts any kind. Asks first whether there is a subscriber
-- on this server: a message also reaches replicas, and a node that still listens to a replica would run a job of another node.
local function deliver_job(node, message)
  local any = $delivery_channel .. node .. ':'
  local subscribers = redis.call('PUBSUB', 'SHARDNUMSUB', any .. $kind, any)
  -- pcall: for a user without the right to publish, the push goes on as if no node were idle.
  local has_any = subscribers[2] + subscribers[4] > 0
  local sent = has_any and redis.pcall('SPUBLISH', subscribers[2] > 0 and subscribers[1] or subscribers[3], message)
  return type(sent) == 'number' and sent > 0
end

-- The message is sent before anything is written, and arrives after all of it is.
local function deliver_to_first_idle(nodes, last_fence, conf, before)
  local next_due = redis.call('ZRANGE', @scheduled, '0', '0', 'WITHSCORES')[2]
  if redis.call('EXISTS', @ready) > 0 or (next_due and tonumber(next_due) <= now) then
    return nil
  end
  local fence = string.format('%016.0f', math.max(parse_int(last_fence, 16) + 1, now))
  for i, node in ipairs(nodes) do
    local ends = tonumber(redis.call('ZSCORE', @lease, node))
    if ends and ends > now and deliver_job(node, fence .. $id .. $record) then
      return node, fence, parse_int(conf[before + i], 15)
    end
  end
end
