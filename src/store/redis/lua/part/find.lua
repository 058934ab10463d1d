-- find: by which words scheduled and dead jobs are found. One sorted set has them all, without scores: the last key of every
-- script that includes this.
local FIND, SOME = KEYS[#KEYS], 500

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
