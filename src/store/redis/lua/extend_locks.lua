#!lua flags=allow-oom
-- extend_locks: lets holds last longer, each only if its owner still has it.
-- KEYS 1 locks
-- ARGV 1 now|'' 2... name, owner, slots to look through, ttl of each
-- Returns { now, { 1: extended | 0: not held | n: not among these slots, but the lock has n } }
-- include now, text
local fields, answers, holds = {}, {}, {}
for n = 2, #ARGV, 4 do
  fields[#fields + 1] = ARGV[n] .. '\0'
  for slot = 1, tonumber(ARGV[n + 2]) do
    fields[#fields + 1] = ARGV[n] .. '\0' .. slot
  end
end
local values, at = redis.call('HMGET', KEYS[1], unpack(fields)), 0
for n = 2, #ARGV, 4 do
  local slots = tonumber(ARGV[n + 2])
  at = at + 1
  -- The mark: how many slots, if there are several.
  local width = tonumber(values[at]) or 1
  local extended = width > slots and width or 0
  for _ = 1, slots do
    at = at + 1
    local hold = values[at]
    if hold and hold:sub(85, 120) == ARGV[n + 1] and (tonumber(hold:sub(1, 16)) or 0) > now then
      holds[#holds + 1] = fields[at]
      holds[#holds + 1] = text(now + ARGV[n + 3]) .. hold:sub(17)
      extended = 1
    end
  end
  answers[#answers + 1] = extended
end
if #holds > 0 then
  redis.call('HSET', KEYS[1], unpack(holds))
end
return { now, answers }
