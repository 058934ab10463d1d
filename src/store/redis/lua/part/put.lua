-- put: writes the records of a batch, and lines up those that are ready.
-- KEYS 1 job 4-7 ready, most urgent first
for at = 9, tickets_at - 1, 2 * STEP do
  redis.call('HSET', KEYS[1], unpack(ARGV, at, math.min(at + 2 * STEP, tickets_at) - 1))
end
local at = tickets_at
for p = 1, 4 do
  local last = at + ARGV[2 + p] - 1
  while at <= last do
    local stop = math.min(at + STEP - 1, last)
    redis.call('RPUSH', KEYS[3 + p], unpack(ARGV, at, stop))
    at = stop + 1
  end
end
local sooner = ready > 0
