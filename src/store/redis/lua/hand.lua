#!lua
-- hand: puts one job into a queue that nobody can have pushed before. Where nothing is ready before it and a node waits that
-- accepts jobs of its kind, or of any, the job goes into its hands: held from now on, under a fence as if the node had claimed it.
-- KEYS 1 conf 2 lease 3 held 4 job 5 idle 6-9 ready, most urgent first 10 due 11 stale 12 history
-- ARGV 1 now|'' 2 channel of wakes 3 channel of jobs 4 number of its ready list, from 0 5 id 6 record 7 bytes of its args 8 kind
-- Returns { now, {}, {}, 1: the queue has a limit, 1: a node has it, or was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include now, text, wake, holds, add, tally, limit
local TRIES = 3
local id, record, bytes, kind = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local refused, limited = full(KEYS[1], KEYS[3], KEYS[10], KEYS[11], 6, 1, bytes)
if refused then
  return refused
end

-- Whether something would be claimed before it: it is ready, or has fallen due and nobody has looked yet.
local function anything_before()
  return redis.call('EXISTS', KEYS[6], KEYS[7], KEYS[8], KEYS[9]) > 0
    or (tonumber(redis.call('ZRANGE', KEYS[10], 0, 0, 'WITHSCORES')[2]) or math.huge) <= now
end

-- On the channel of its kind, or on that of a node that takes any. Only if one is heard here, which is asked first: a word
-- goes to replicas too, and a node that still listens to one, and has not found this master, would run what another holds.
local function told(node, word)
  local any = ARGV[3] .. node .. ':'
  local ears = redis.call('PUBSUB', 'SHARDNUMSUB', any .. kind, any)
  return ears[2] + ears[4] > 0 and redis.call('SPUBLISH', ears[2] > 0 and ears[1] or ears[3], word) > 0
end

-- The first of those that have looked last which lives, and hears of it; the fence; how many jobs that node holds.
-- The word is under way before anything is written, and arrives after all of it is.
local function taker()
  local nodes = redis.call('ZRANGE', KEYS[5], 0, TRIES - 1, 'REV')
  if #nodes == 0 or anything_before() then
    return nil
  end
  local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'fence', unpack(nodes))
  local fence = text(math.max(whole(conf[3], 16) + 1, now))
  for i, node in ipairs((conf[1] or conf[2]) and {} or nodes) do
    local ends = tonumber(redis.call('ZSCORE', KEYS[2], node))
    if ends and ends > now and told(node, fence .. id .. record) then
      return node, fence, whole(conf[3 + i], 15)
    end
  end
end

local woken = 1
local node, fence, holds = taker()
if node then
  redis.call('ZREM', KEYS[5], node)
  redis.call('HSET', KEYS[4], id, record)
  redis.call('HSET', KEYS[3], id, string.format('%-64s%d', node .. ' ' .. fence, ARGV[4]))
  redis.call('HSET', KEYS[1], 'fence', fence, node, holds + 1)
else
  redis.call('HSET', KEYS[4], id, record)
  redis.call('RPUSH', KEYS[6 + ARGV[4]], id)
  woken = wake(KEYS[5], ARGV[2])
end
add(KEYS[1], 'bytes', bytes)
happened(KEYS[12], '00', 1)
return { now, {}, {}, limited, woken }
