#!lua
-- hand: puts one job into a queue that nobody can have pushed before. Where nothing is ready before it and a node waits that
-- accepts jobs of its kind, or of any, the job goes into its hands: held from now on, under a fence as if the node had claimed it.
-- KEYS 1 conf 2 lease 3 held 4 job 5 idle 6-9 ready, most urgent first 10 due 11 stale 12 history
-- ARGV 1 now|'' 2 channel of wakes 3 channel of jobs 4 number of its ready list, from 0 5 id 6 record 7 bytes of its args 8 kind
-- Returns { now, 1: the queue has a limit, 1: a node has it, or was woken }, or { now, 'full', jobs|'', bytes|'' }
-- include now, whole, add, tally
local id, record, bytes, kind = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
-- The three that have looked last are tried.
local nodes = redis.call('ZRANGE', KEYS[5], '0', '2', 'REV')
local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'fence', 'limit_jobs', 'limit_bytes', unpack(nodes))
local refused, limited = nil, 0
if conf[4] or conf[5] then
-- include limit
  refused, limited = full(KEYS[1], KEYS[3], KEYS[10], KEYS[11], 6, 1, tonumber(bytes))
end
if refused then
  return refused
end
-- include taker
local woken, node, fence, holds = 1, taker()
redis.call('HSET', KEYS[4], id, record)
if node then
  redis.call('ZREM', KEYS[5], node)
  redis.call('HSET', KEYS[3], id, string.format('%-64s%s', node .. ' ' .. fence, ARGV[4]))
  redis.call('HSET', KEYS[1], 'fence', fence, node, holds + 1)
else
  redis.call('RPUSH', KEYS[6 + ARGV[4]], id)
-- include wake
  woken = wake(KEYS[5], ARGV[2])
end
add(KEYS[1], 'bytes', bytes)
happened(KEYS[12], '00', '1')
return { now, limited, woken }
