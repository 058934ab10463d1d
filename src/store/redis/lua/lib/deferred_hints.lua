-- deferred_hints: leaves hints at jobs that are scheduled only because their node has no handler for the kind, and wakes others.
-- A hint is the kind, a 0 byte, the priority, the ticket as in the schedule and its due time (16 digits).
-- If there are too many hints, all are dropped: the jobs become due anyway, and may be deferred again.
-- functions: add_deferred_hint, write_deferred_hints
-- needs: to_digits, parse_int
local HINTS_MAX, WAKES_MAX = 10000, 16
local hints, outdated = {}, {}

-- `before` is when the job was due before (16 digits): a hint for that time is replaced.
local function add_deferred_hint(kind, ticket, due, before)
  local head = kind .. '\0' .. string.char(ticket:byte(17) - 49) .. ticket
  hints[#hints + 1] = 0
  hints[#hints + 1] = head .. to_digits(due)
  outdated[#outdated + 1] = head .. before
end

local function write_deferred_hints(channel, node)
  if #hints == 0 then
    return
  end
  redis.call('ZREM', @deferred, unpack(outdated))
  if redis.call('ZCARD', @deferred) + #outdated > HINTS_MAX then
    redis.call('UNLINK', @deferred)
  end
  redis.call('ZADD', @deferred, unpack(hints))
  -- The mark also grows after a failover that lost its last value.
  local last = parse_int(redis.call('HGET', @conf, 'deferred_mark'), 16)
  redis.call('HSET', @conf, 'deferred_mark', to_digits(math.max(last + 1, now)))
  -- Only the nodes themselves know which kinds they handle. Other nodes see the mark with their next heartbeat.
  for _, other in ipairs(redis.call('ZRANGE', @idle, 0, WAKES_MAX - 1)) do
    if other ~= node then
      redis.call('ZREM', @idle, other)
      redis.pcall('SPUBLISH', channel .. other, '')
    end
  end
end
