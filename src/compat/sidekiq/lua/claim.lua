#!lua flags=allow-oom
-- claim: takes the oldest entries of a queue whose kind the node knows; all others stay where they are, for others.
-- KEYS 1 conf 2 lease 3 since 4 held 5 queue 6 schedule 7 retry 8 crashes 9 idle
-- ARGV 1 now|'' 2 channel 3 node 4 most to take 5 lease 6 1: the node may be on the idle list 7 1: take, whatever is due
--      8 1: it knows every kind 9... the kinds it knows
-- Returns { now, 'took' | 'due' | why not, fence, more, next due|'', rank, { entry }, { crashes of each, if any } }
-- include now, text, wake, mixed, pick, whole, hold
local node, most = ARGV[3], tonumber(ARGV[4])
local conf = redis.call('HMGET', KEYS[1], 'paused', 'moving', 'fence', node)
local closed, last, holds = conf[1] or conf[2], whole(conf[3], 16), whole(conf[4], 15)
local fence, next_due = text(math.max(last + 1, now)), math.huge
for set = 6, 7 do
  local first = tonumber(redis.call('ZRANGE', KEYS[set], 0, 0, 'WITHSCORES')[2])
  next_due = math.min(next_due, first and math.floor(first * 1000000 + 0.5) or math.huge)
end
if not closed and next_due <= now and ARGV[7] ~= '1' then
  return { now, 'due' }
end
local taken, crashes, held, rank, more, too_long = {}, {}, {}, 0, 0, false
if not closed then
  local why = mixed(KEYS[5])
  if why then
    return { now, why }
  end
  taken, too_long = pick(KEYS[5], most)
end
if #taken > 0 then
  local crashed, sums = redis.call('EXISTS', KEYS[8]) == 1, {}
  for i, entry in ipairs(taken) do
    held[2 * i - 1], held[2 * i] = fence .. string.format(':%04d', i), entry
    sums[i] = crashed and redis.sha1hex(entry)
  end
  crashes = crashed and redis.call('HMGET', KEYS[8], unpack(sums)) or {}
  redis.call('HSET', KEYS[4], unpack(held))
  redis.call('HSET', KEYS[1], 'fence', fence, node, holds + #taken)
  hold(node, holds, tonumber(ARGV[5]))
end
if #taken < most and not too_long then
  redis.call('ZADD', KEYS[9], now, node)
  rank = redis.call('ZRANK', KEYS[9], node)
else
  if ARGV[6] == '1' then
    redis.call('ZREM', KEYS[9], node)
  end
  more = 1
  if redis.call('EXISTS', KEYS[9]) == 1 and redis.call('EXISTS', KEYS[5]) == 1 then
    wake(KEYS[9], ARGV[2])
  end
end
local soon = not closed and next_due < math.huge and text(next_due) or ''
return { now, 'took', fence, more, soon, rank, taken, crashes }
