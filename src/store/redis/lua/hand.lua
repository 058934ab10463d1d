#!lua
-- hand: puts one job into a queue that nobody can have pushed before. Where nothing is ready before it and a node waits that
-- accepts jobs, the job goes into its hands: held from now on, under a fence as if the node had claimed it.
-- KEYS 1 conf 2 lease 3 held 4 job 5 idle 6-9 ready, most urgent first
-- ARGV 1 now|'' 2 channel of wakes 3 channel of jobs 4 number of its ready list, from 0 5 id 6 record
-- Returns { now, {}, {}, 1: a node has it, or was woken }
-- include now, text, wake, holds
local id, record = ARGV[5], ARGV[6]

-- The node that has looked last, if it lives and may claim; the last fence; how many jobs the node holds.
local function taker()
  if redis.call('EXISTS', KEYS[6], KEYS[7], KEYS[8], KEYS[9]) > 0 then
    return nil
  end
  local node = redis.call('ZRANGE', KEYS[5], -1, -1)[1]
  local ends = node and tonumber(redis.call('ZSCORE', KEYS[2], node))
  if not ends or ends <= now then
    return nil
  end
  local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'fence', node)
  if conf[1] or conf[2] then
    return nil
  end
  return node, whole(conf[3], 16), whole(conf[4], 15)
end

local node, last, holds = taker()
local fence = node and text(math.max(last + 1, now))
-- Only if somebody hears it: the word is under way before anything is written, and arrives after all of it is.
if node and redis.call('SPUBLISH', ARGV[3] .. node, fence .. id .. record) > 0 then
  redis.call('ZREM', KEYS[5], node)
  redis.call('HSET', KEYS[4], id, record)
  redis.call('HSET', KEYS[3], id, string.format('%-64s%d', node .. ' ' .. fence, ARGV[4]))
  redis.call('HSET', KEYS[1], 'fence', fence, node, holds + 1)
  return { now, {}, {}, 1 }
end
redis.call('HSET', KEYS[4], id, record)
redis.call('RPUSH', KEYS[6 + ARGV[4]], id)
return { now, {}, {}, wake(KEYS[5], ARGV[2]) }
