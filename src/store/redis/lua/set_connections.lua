#!lua
-- set_connections: notes connections that a node holds, and forgets others of its.
-- KEYS 1 presence 2 connections
-- ARGV 1 now|'' 2 node 3 lease 4 how many are held 5... the held ones, then the others
-- Returns { now }
-- include now
local node, pairs_of, last = ARGV[2], {}, 4 + tonumber(ARGV[4])
for n = 5, last do
  pairs_of[#pairs_of + 1] = ARGV[n]
  pairs_of[#pairs_of + 1] = node
end
if #pairs_of > 0 then
  redis.call('ZADD', KEYS[1], 'GT', now + ARGV[3], node)
  redis.call('HSET', KEYS[2], unpack(pairs_of))
end
for n = last + 1, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[n]) == node then
    redis.call('HDEL', KEYS[2], ARGV[n])
  end
end
return { now }
