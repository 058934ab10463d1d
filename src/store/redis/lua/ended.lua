#!lua flags=no-writes
-- ended: which of some jobs are done, dead or gone.
-- KEYS 1 job 2 done 3 dead
-- ARGV 1 now|'' 2... ids, at most 500
-- Returns { now, { ids } }
-- include now
local ended = {}
if #ARGV < 2 then
  return { now, ended }
end
local done = redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 2))
local dead = redis.call('ZMSCORE', KEYS[3], unpack(ARGV, 2))
for i = 2, #ARGV do
  if done[i - 1] or dead[i - 1] or redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then
    ended[#ended + 1] = ARGV[i]
  end
end
return { now, ended }
