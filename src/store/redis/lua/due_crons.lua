#!lua flags=no-writes
-- due_crons: rules of a queue that are to be looked at now, and those of these names whose tick is held back.
-- KEYS 1 conf 2 cron 3 ticks
-- ARGV 1 now|'' 2 most 3... names
-- Returns { now, { rule|nothing }, when to look next|'' }
-- include now
local conf = redis.call('HMGET', KEYS[1], 'moving', 'tick')
if conf[1] then
  return { now, {}, '' }
end
local STEP, BYTES = 15, 1048576
local most, rules, bytes = tonumber(ARGV[2]), {}, 0
local names = redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
for from = 1, #names, STEP do
  -- Rules may have long args: what is too much at once is still due at the next look.
  if bytes < BYTES then
    for _, rule in ipairs(redis.call('HMGET', KEYS[2], unpack(names, from, math.min(from + STEP - 1, #names)))) do
      rules[#rules + 1] = rule
      bytes = bytes + (rule and #rule or 0)
    end
  end
end
for at = 3, math.min(#ARGV, most + 2) do
  local rule = redis.call('HGET', KEYS[2], ARGV[at])
  local look = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[at]))
  -- Active, held back, and not among the others.
  if rule and #rules < most and rule:sub(50, 51) == '01' and look and look > now then
    rules[#rules + 1] = rule
  end
end
return { now, rules, conf[2] or '' }
