-- find: by which words scheduled and dead jobs are found. One sorted set has them all, without scores: the last key of every
-- script that includes this. A member is s (scheduled) or b (dead), a word, a 0 byte, a moment (16 digits: when it is due, or
-- when it died) and the id, so that the jobs of one word stand together, in their order.
-- A word is k and the kind, or t and a tag; of the dead also g and the group, and nothing at all, which all of them have.
local FIND, SOME = KEYS[#KEYS], 500

local function add_words(members, state, words, tail)
  local letter = 'k'
  for word in words:gmatch('[^ ]+') do
    members[#members + 1] = state .. letter .. word .. tail
    letter = 't'
  end
end

-- Those of a scheduled job, which its ticket names.
local function words_in(ticket)
  return ticket:match('^[^ ]* (.*)$', 17) or ''
end
local function words_due(members, ticket, due)
  add_words(members, 's', words_in(ticket), '\0' .. text(due) .. ticket:sub(1, 16))
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
      some[#some + 1] = 0
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
