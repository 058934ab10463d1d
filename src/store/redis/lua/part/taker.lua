-- taker: the node that a pushed job (`id`, `record`, `kind`) is put into the hands of: one of `nodes`, as `conf` knows them.
-- KEYS 2 lease 6-9 ready 10 due
-- ARGV 3 channel of jobs

-- Whether something would be claimed before it: it is ready, or has fallen due and nobody has looked yet.
local function anything_before()
  return redis.call('EXISTS', KEYS[6], KEYS[7], KEYS[8], KEYS[9]) > 0
    or (tonumber(redis.call('ZRANGE', KEYS[10], '0', '0', 'WITHSCORES')[2]) or math.huge) <= now
end

-- On the channel of its kind, or on that of a node that takes any. Only if one is heard here, which is asked first: a word
-- goes to replicas too, and a node that still listens to one, and has not found this master, would run what another holds.
local function told(node, word)
  local any = ARGV[3] .. node .. ':'
  local ears = redis.call('PUBSUB', 'SHARDNUMSUB', any .. kind, any)
  -- Who may not speak there pushes as if nobody were idle.
  local heard = ears[2] + ears[4] > 0 and redis.pcall('SPUBLISH', ears[2] > 0 and ears[1] or ears[3], word)
  return type(heard) == 'number' and heard > 0
end

-- The first of them that lives, and hears of it; the fence; how many jobs that node holds.
-- The word is under way before anything is written, and arrives after all of it is.
local function taker()
  if #nodes == 0 or conf[1] or conf[2] or anything_before() then
    return nil
  end
  local fence = string.format('%016.0f', math.max(whole(conf[3], 16) + 1, now))
  for i, node in ipairs(nodes) do
    local ends = tonumber(redis.call('ZSCORE', KEYS[2], node))
    if ends and ends > now and told(node, fence .. id .. record) then
      return node, fence, whole(conf[5 + i], 15)
    end
  end
end
