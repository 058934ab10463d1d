-- put_off: notes which jobs are scheduled only because their node does not know their kind, and tells others that they are there.
-- A note is the kind, a 0 byte, the priority, the ticket as the schedule has it, its moment (16 digits).
-- Where too many are noted all are forgotten: what was put off falls due, and may be noted again.
-- KEYS 1 conf 12 idle 20 put_off
local PUT_OFF, WAKES = 10000, 16
local notes, outdated = {}, {}
local function note_put_off(kind, ticket, at, before)
  if not kind or kind == '' then
    return
  end
  local begins = kind .. '\0' .. string.char(ticket:byte(17) - 49) .. ticket
  notes[#notes + 1] = 0
  notes[#notes + 1] = begins .. text(at)
  outdated[#outdated + 1] = begins .. before
end

local function write_notes()
  if #notes == 0 then
    return
  end
  redis.call('ZREM', KEYS[20], unpack(outdated))
  if redis.call('ZCARD', KEYS[20]) + #outdated > PUT_OFF then
    redis.call('UNLINK', KEYS[20])
  end
  redis.call('ZADD', KEYS[20], unpack(notes))
  add(KEYS[1], 'put_off', 1)
  -- Which of them know these kinds they alone know. Those that have waited longest come first, so everybody has a turn.
  for _, other in ipairs(redis.call('ZRANGE', KEYS[12], 0, WAKES - 1)) do
    if other ~= node and redis.call('SPUBLISH', ARGV[2] .. other, '') > 0 then
      redis.call('ZREM', KEYS[12], other)
    end
  end
end
