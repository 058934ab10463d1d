-- note_cancelled: lists a marked job for the heartbeats of its node. Without room in the list, the heartbeats scan for it.
-- needs: cancelled_limits
local function note_cancelled(node, id)
  local listed = redis.call('HGET', @conf, 'cancelled:' .. node) or ''
  for at = 1, #listed, 16 do
    if listed:sub(at, at + 15) == id then
      return
    end
  end
  if #listed < 16 * CANCELLED_MAX then
    redis.call('HSET', @conf, 'cancelled:' .. node, listed .. id)
  else
    -- A scan that has begun may be past this job.
    redis.call('HSET', @conf, 'cancel_scan:' .. node, 0)
  end
end
