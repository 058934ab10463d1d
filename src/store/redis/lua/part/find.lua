-- find: by which words scheduled and dead jobs are found. One sorted set has them all, without scores: the last key of every
-- script that includes this. A member is s (scheduled) or b (dead), a word, a 0 byte, a moment (16 digits: when it is due, or
-- when it died) and the id, so that the jobs of one word stand together, in their order.
-- A word is k and the kind, or t and a tag; of the dead also g and the group, and nothing at all, which all of them have.
local FIND, SOME = KEYS[#KEYS], 500

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

local function put_words(members)
  for from = 1, #members, SOME do
    local some = {}
    for at = from, math.min(from + SOME - 1, #members) do
      some[#some + 1] = '0'
      some[#some + 1] = members[at]
    end
    redis.call('ZADD', FIND, unpack(some))
  end
end
local function drop_words(members)
  for from = 1, #members, SOME do
    redis.call('ZREM', FIND, unpack(members, from, math.min(from + SOME - 1, #members)))
  end
end

-- Puts a job among the dead, and into the schedule.
local function bury(dead, at, id, meta)
  local members = {}
  words_dead(members, id, meta)
  redis.call('ZADD', dead, at, id)
  put_words(members)
end

local function schedule(due, at, ticket)
  local members = {}
  words_due(members, ticket, at)
  redis.call('ZADD', due, at, ticket)
  put_words(members)
end
