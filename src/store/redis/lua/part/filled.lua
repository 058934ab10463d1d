-- filled: a ticket of the schedule as its holder has sent it. Who cannot read the record sends it without words: they are in there.
-- KEYS 3 job
local function filled(ticket)
  if ticket:sub(-1) ~= ' ' then
    return ticket
  end
  return ticket .. words_of(redis.call('HGET', KEYS[3], ticket:sub(1, 16)) or '')
end
