-- words: what scheduled and dead jobs are found by, as members of the set that find keeps. A member is s (scheduled) or b (dead), a
-- word, a 0 byte, a moment (16 digits: when it is due, or when it died) and the id, so that the jobs of one word stand together, in
-- their order.
-- A word is k and the kind, or t and a tag; of the dead also g and the group, and nothing at all, which all of them have.

-- What the members of a job begin with, by its words; many jobs have the same.
local known_heads = { s = {}, b = {} }
local function heads_of(state, words)
  local heads, letter = known_heads[state][words], 'k'
  if not heads then
    heads = {}
    for word in words:gmatch('[^ ]+') do
      heads[#heads + 1] = state .. letter .. word
      letter = 't'
    end
    known_heads[state][words] = heads
  end
  return heads
end

local function add_words(members, state, words, tail)
  local heads = heads_of(state, words)
  for i = 1, #heads do
    members[#members + 1] = heads[i] .. tail
  end
end

-- Those of a scheduled job, which its ticket names.
local function words_in(ticket)
  local space = ticket:find(' ', 17, true)
  return space and ticket:sub(space + 1) or ''
end
local function tail_due(ticket, due)
  return '\0' .. text(due) .. ticket:sub(1, 16)
end
local function words_due(members, ticket, due)
  add_words(members, 's', words_in(ticket), tail_due(ticket, due))
end

-- Those of a dead job, which its meta names.
local function words_dead(members, id, meta)
  local group, tail = meta:sub(73, 88), '\0' .. meta:sub(17, 32) .. id
  members[#members + 1] = 'b' .. tail
  members[#members + 1] = group ~= '' and 'bg' .. group .. tail or nil
  add_words(members, 'b', meta:sub(89), tail)
end
