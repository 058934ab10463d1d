#!lua
-- push: puts jobs into one queue, each at once or at its time.
-- KEYS 1 conf 2 queues 3 queue 4 schedule 5,6 gone 7 idle
-- ARGV 1 now|'' 2 channel 3 age of remembered ids 4 queue 5 1: the ids may be known 6 how many are for now
--      then id and entry of each for now; then id, entry and due (or + and how long) of each for later
-- Returns { now, why not|'', { id of each that is known } }
-- include now, wake, gone, score, mixed, chunks
local ready, look = tonumber(ARGV[6]), ARGV[5] == '1'
local known, ids, entries, later, siblings = {}, {}, {}, {}, {}
local why = mixed(KEYS[3])
if why then
  return { now, why, {} }
end
redis.call('SCARD', KEYS[2])
local first = tonumber(redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]) or math.huge
local function is_new(id)
  local is_known = look and redis.call('SISMEMBER', KEYS[5], id) + redis.call('SISMEMBER', KEYS[6], id) > 0
  if is_known then
    known[#known + 1] = id
    return false
  end
  ids[#ids + 1] = id
  return true
end
local at = 7
for _ = 1, ready do
  if is_new(ARGV[at]) then
    entries[#entries + 1] = ARGV[at + 1]
  end
  at = at + 2
end
for place = at, #ARGV, 3 do
  if is_new(ARGV[place]) then
    later[#later + 1] = place
  end
end
if #ids == 0 then
  return { now, '', known }
end
chunks('SADD', gone(KEYS[1], { KEYS[5], KEYS[6] }, tonumber(ARGV[3])), ids)
redis.call('SADD', KEYS[2], ARGV[4])
local sooner = false
for _, place in ipairs(later) do
  local due = ARGV[place + 2]
  local moment = due:sub(1, 1) == '+' and now + tonumber(due:sub(2)) or tonumber(due)
  local before = siblings[moment] or 0
  siblings[moment] = before + 1
  local text = score(KEYS[4], moment + before)
  redis.call('ZADD', KEYS[4], text, ARGV[place + 1])
  sooner = sooner or tonumber(text) < first
end
chunks('LPUSH', KEYS[3], entries)
if sooner or #entries > 0 then
  wake(KEYS[7], ARGV[2])
end
return { now, '', known }
