#!lua flags=no-writes
-- page: a part of the jobs in one state, in their order; running ones are read by holding.
-- KEYS 1 job 2 meta 3 the set (due, done or dead) or list (ready) 4 stale
-- ARGV 1 now|'' 2 scheduled|ready|ended 3 where the last page ended|'' 4 its number 5 most
-- Returns { now, { ticket|id }, { number }, { record }, { meta }, how many there were }: not all if they are long; a number is a
--      score, or a place in the list
-- include now, bodies
local kind, last, number, most = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local members, numbers, ids = {}, {}, {}
if kind == 'ready' then
  local from = 0
  if last ~= '' then
    -- It can have moved only to the front, or a little back when others were released.
    from = redis.call('LPOS', KEYS[3], last, 'MAXLEN', number + 1000)
    from = from and from + 1 or tonumber(number)
  end
  members = redis.call('LRANGE', KEYS[3], from, from + most - 1)
  for i in ipairs(members) do
    numbers[i] = from + i - 1
  end
else
  local reverse = kind == 'ended'
  local from = 0
  if last ~= '' or number ~= '0' then
    local rank = redis.call(reverse and 'ZREVRANK' or 'ZRANK', KEYS[3], last)
    if rank then
      from = rank + 1
    elseif reverse then
      from = redis.call('ZCOUNT', KEYS[3], '(' .. number, '+inf')
    else
      from = redis.call('ZCOUNT', KEYS[3], '-inf', '(' .. number)
    end
  end
  local found = redis.call(reverse and 'ZREVRANGE' or 'ZRANGE', KEYS[3], from, from + most - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    members[#members + 1], numbers[#numbers + 1] = found[i], found[i + 1]
  end
end
if #members == 0 then
  return { now, {}, {}, {}, {}, 0 }
end
for i, member in ipairs(members) do
  ids[i] = member:sub(1, 16)
end
local records, all = bodies(KEYS[1], ids, 1048576, 1), #members
for i = all, #records + 1, -1 do
  members[i], ids[i] = nil, nil
end
if kind == 'ready' then
  local stale = redis.call('SMISMEMBER', KEYS[4], unpack(members))
  local marked = {}
  for i, member in ipairs(members) do
    -- Of two tickets of one name only one is stale.
    local is_stale = stale[i] == 1 and not marked[member]
    records[i] = not is_stale and records[i]
    marked[member] = is_stale
  end
end
return { now, members, numbers, records, redis.call('HMGET', KEYS[2], unpack(ids)), all }
