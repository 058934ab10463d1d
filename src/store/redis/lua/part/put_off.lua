-- put_off: leaves hints at jobs that are scheduled only because their node does not know their kind, and tells others of them.
-- A hint is the kind, a 0 byte, the priority, the ticket as the schedule has it, its moment (16 digits).
-- Where there are too many all are forgotten: what was put off falls due, and may be hinted at again.
-- KEYS 1 conf 12 idle 20 put_off
-- ARGV 3 node
local HINTS, WAKES = 10000, 16
local hints, outdated = {}, {}
local function hint_at(kind, ticket, at, before)
  if not kind or kind == '' then
    return
  end
  local begins = kind .. '\0' .. string.char(ticket:byte(17) - 49) .. ticket
  hints[#hints + 1] = 0
  hints[#hints + 1] = begins .. text(at)
  outdated[#outdated + 1] = begins .. before
end

local function write_hints()
  if #hints == 0 then
    return
  end
  redis.call('ZREM', KEYS[20], unpack(outdated))
  if redis.call('ZCARD', KEYS[20]) + #outdated > HINTS then
    redis.call('UNLINK', KEYS[20])
  end
  redis.call('ZADD', KEYS[20], unpack(hints))
  -- Grows also after a failover that has lost the last of it.
  local last = whole(redis.call('HGET', KEYS[1], 'put_offs'), 16)
  redis.call('HSET', KEYS[1], 'put_offs', text(math.max(last + 1, now)))
  -- Which of them know these kinds they alone know. Others hear of it at their next beat.
  for _, other in ipairs(redis.call('ZRANGE', KEYS[12], 0, WAKES - 1)) do
    if other ~= ARGV[3] then
      redis.call('ZREM', KEYS[12], other)
      redis.pcall('SPUBLISH', ARGV[2] .. other, '')
    end
  end
end
