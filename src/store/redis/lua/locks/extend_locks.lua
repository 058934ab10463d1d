#!lua flags=allow-oom
-- extend_locks: extends holds, each only if its owner still has it.
-- keys: locks
-- args: now requests...
--   requests: for each lock: name, owner, number of slots to look through, ttl
-- Returns { now, { 1: extended | 0: not held | n: not among these slots, but the lock has n } }
-- include read_time, to_digits
local fields, results, holds = {}, {}, {}
for n = &requests, #ARGV, 4 do
  fields[#fields + 1] = ARGV[n] .. '\0'
  for slot = 1, tonumber(ARGV[n + 2]) do
    fields[#fields + 1] = ARGV[n] .. '\0' .. slot
  end
end
local values, at = redis.call('HMGET', @locks, unpack(fields)), 0
for n = &requests, #ARGV, 4 do
  local slots = tonumber(ARGV[n + 2])
  at = at + 1
  -- The mark has the number of slots, if there are several.
  local width = tonumber(values[at]) or 1
  local extended = width > slots and width or 0
  for _ = 1, slots do
    at = at + 1
    local hold = values[at]
    if hold and hold:sub(85, 120) == ARGV[n + 1] and (tonumber(hold:sub(1, 16)) or 0) > now then
      holds[#holds + 1] = fields[at]
      holds[#holds + 1] = to_digits(now + ARGV[n + 3]) .. hold:sub(17, 120) .. to_digits(tonumber(ARGV[n + 3])) .. hold:sub(137)
      extended = 1
    end
  end
  results[#results + 1] = extended
end
if #holds > 0 then
  redis.call('HSET', @locks, unpack(holds))
end
return { now, results }
