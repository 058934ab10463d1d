-- put: writes a batch, and wakes a node if it has something to do sooner than it thinks.
-- KEYS 1 job 2 due 3 idle 4-7 ready, most urgent first, the last: find
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
if scheduled > 0 then
  local members = {}
  local first = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]) or math.huge
  for n = due_at, rest_at - 1, 2 do
    -- '+n' is n microseconds from now, 'n' is a moment.
    local due, ticket = tonumber(ARGV[n]), ARGV[n + 1]
    if ARGV[n]:byte(1) == 43 then
      due = now + due
    end
    if due <= now then
      redis.call('RPUSH', KEYS[4 + ticket:byte(17) - 48], ticket:sub(1, 16))
    else
      redis.call('ZADD', KEYS[2], due, ticket)
      words_due(members, ticket, due)
    end
    sooner = sooner or due < first
  end
  put_words(members)
end
local woken = sooner and wake(KEYS[3], ARGV[2]) or 0
