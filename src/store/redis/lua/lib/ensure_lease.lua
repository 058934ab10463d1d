-- ensure_lease: gives a node that starts to hold jobs a lease. A node whose lease had expired was not in contact all the time.
local function ensure_lease(node, lease)
  local ends = tonumber(redis.call('ZSCORE', @lease, node))
  if not ends or ends < now then
    redis.call('ZADD', @since, now, node)
  end
  if not ends or ends < now + lease * 0.5 then
    redis.call('ZADD', @lease, now + lease, node)
  end
end
