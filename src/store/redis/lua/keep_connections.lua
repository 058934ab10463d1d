#!lua
-- keep_connections: notes connections that a node holds, except those that another node which is there has noted since.
-- KEYS 1 presence 2 connections
-- ARGV 1 now|'' 2 node 3 lease 4... connections
-- Returns { now }
-- include now
local node, pairs_of, alive = ARGV[2], {}, {}

local function is_there(other)
  if alive[other] == nil then
    alive[other] = (tonumber(redis.call('ZSCORE', KEYS[1], other)) or -1) >= now
  end
  return alive[other]
end

local holders = #ARGV > 3 and redis.call('HMGET', KEYS[2], unpack(ARGV, 4)) or {}
for i, holder in ipairs(holders) do
  if not holder or holder == node or not is_there(holder) then
    pairs_of[#pairs_of + 1] = ARGV[i + 3]
    pairs_of[#pairs_of + 1] = node
  end
end
if #pairs_of > 0 then
  redis.call('ZADD', KEYS[1], 'GT', now + ARGV[3], node)
  redis.call('HSET', KEYS[2], unpack(pairs_of))
end
return { now }
