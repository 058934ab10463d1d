#!lua
-- hand: puts one job into a queue that nobody can have pushed before. Where nothing is ready before it and a node waits that
-- accepts jobs of its kind, the job goes into its hands: held from now on, under a fence as if the node had claimed it.
-- KEYS 1 conf 2 lease 3 held 4 job 5 idle 6-9 ready, most urgent first 10 due 11 stale 12 history
-- ARGV 1 now|'' 2 channel of wakes 3 channel of jobs 4 number of its ready list, from 0 5 id 6 record 7 bytes of its args 8 kind
-- Returns { now, {}, {}, 1: the queue has a limit, 1: a node has it, or was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include now, text, wake, holds, add, tally, limit
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

-- The node that has looked last, if it lives and may claim; the last fence; how many jobs the node holds.
local function taker()
  local node = redis.call('ZRANGE', KEYS[5], -1, -1)[1]
  local ends = node and tonumber(redis.call('ZSCORE', KEYS[2], node))
  if not ends or ends <= now or anything_before() then
    return nil
  end
  local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'fence', node)
  if conf[1] or conf[2] then
    return nil
  end
  return node, whole(conf[3], 16), whole(conf[4], 15)
end

-- Only if somebody hears it: on the channel of its kind, or on that of a node that takes any.
local function told(node, word)
  local channel = ARGV[3] .. node .. ':'
  return redis.call('SPUBLISH', channel .. kind, word) > 0 or redis.call('SPUBLISH', channel, word) > 0
end

local woken = 1
local node, last, holds = taker()
local fence = node and text(math.max(last + 1, now))
-- The word is under way before anything is written, and arrives after all of it is.
if node and told(node, fence .. id .. record) then
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
