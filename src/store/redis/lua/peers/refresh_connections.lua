#!lua
-- refresh_connections: records connections that a node holds, except those that another living node has recorded since.
-- keys: presence connections
-- args: now node lease names...
-- Returns { now }
-- include read_time
local node, pairs_of, alive = $node, {}, {}

local function is_alive(other)
  if alive[other] == nil then
    alive[other] = (tonumber(redis.call('ZSCORE', @presence, other)) or -1) >= now
  end
  return alive[other]
end

local holders = #$names > 0 and redis.call('HMGET', @connections, $names) or {}
for i, holder in ipairs(holders) do
  if not holder or holder == node or not is_alive(holder) then
    pairs_of[#pairs_of + 1] = $names[i]
    pairs_of[#pairs_of + 1] = node
  end
end
if #pairs_of > 0 then
  redis.call('ZADD', @presence, 'GT', now + $lease, node)
  redis.call('HSET', @connections, unpack(pairs_of))
end
return { now }
