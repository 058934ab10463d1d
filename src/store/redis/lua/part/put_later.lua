-- put_later: those of a batch that are scheduled. A node may have something to do sooner than it thinks.
-- KEYS 2 due 4-7 ready, most urgent first, the last: find
local later, members = {}, {}
local first = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]) or math.huge
local said, due, digits
for n = due_at, rest_at - 1, 2 do
  -- '+n' is n microseconds from now, 'n' is a moment. Most of a batch say the same, and to make digits of a number costs.
  if ARGV[n] ~= said then
    said = ARGV[n]
    due = said:byte(1) == 43 and now + said or tonumber(said)
    digits = text(due)
  end
  local ticket = ARGV[n + 1]
  if due <= now then
    redis.call('RPUSH', KEYS[4 + ticket:byte(17) - 48], ticket:sub(1, 16))
  else
    later[#later + 1] = digits
    later[#later + 1] = ticket
    add_words(members, 's', words_in(ticket), '\0' .. digits .. ticket:sub(1, 16))
  end
  sooner = sooner or due < first
end
for from = 1, #later, STEP do
  redis.call('ZADD', KEYS[2], unpack(later, from, math.min(from + STEP - 1, #later)))
end
put_words(members)
