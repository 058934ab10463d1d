-- ensure_lease: gives a node that starts to hold jobs a lease. A node whose lease had expired was not in contact all the time.
-- needs: to_digits
local function ensure_lease(node, lease)
  local ends = tonumber(redis.call('ZSCORE', @lease, node))
  if not ends or ends < now then
    redis.call('ZADD', @since, now, node)
    -- The length of the lease, for a node that was forgotten. Its next heartbeat adds the rest.
    redis.call('HSETNX', @nodes, node, to_digits(now) .. to_digits(lease))
  end
  if not ends or ends < now + lease * 0.5 then
    redis.call('ZADD', @lease, now + lease, node)
  end
end
