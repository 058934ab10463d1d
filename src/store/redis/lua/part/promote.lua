-- promote: moves what has fallen due to the ready lists. Jobs have up to 17 words each, so these are bounded too.
-- Returns whether there may be more.
-- KEYS 5 due 10-13 ready
local WORDS = 1000
local function promote(most)
  local found = redis.call('ZRANGE', KEYS[5], '-inf', now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local due, members = {}, {}
  for at = 1, #found, 2 do
    if #members >= WORDS then
      break
    end
    due[#due + 1] = found[at]
    words_due(members, found[at], found[at + 1])
  end
  if #due == 0 then
    return false
  end
  redis.call('ZREM', KEYS[5], unpack(due))
  drop_words(members)
  spread('RPUSH', 10, due)
  return #due == most or 2 * #due < #found
end
