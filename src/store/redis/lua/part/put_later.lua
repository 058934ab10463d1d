-- put_later: those of a batch that are scheduled. A node may have something to do sooner than it thinks.
-- KEYS 2 due 4-7 ready, most urgent first, the last: find
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
