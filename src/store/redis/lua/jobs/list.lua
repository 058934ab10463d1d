#!lua flags=no-writes
-- list: reads a page of the jobs in one state, in their order. Running jobs are read by list_held.
-- keys: conf job meta scheduled done dead cancelled ready[4] stale
-- args: now state priority last number max_jobs reversed
--   state: scheduled, ready, done, dead or cancelled; priority: 0 to 3 of ready jobs; last, number: where the last page ended, or '' and 0;
--   reversed: 1 for the other order of a sorted set: scheduled jobs in descending order of their scores, others in ascending order
-- Returns { now, { ticket|id }, { number }, { record }, { meta }, how many there were }: not all if they are long. A number is a
--   score, or a position in the list
-- include read_time, check_format, read_records
local last, max = $last, tonumber($max_jobs)
local members, numbers, ids = {}, {}, {}
if $state == 'ready' then
  local list, from = @ready[$priority + 1], 0
  if last ~= '' then
    -- The ticket can only have moved to the front, or back a little when jobs were released.
    from = redis.call('LPOS', list, last, 'MAXLEN', $number + 1000)
    from = from and from + 1 or tonumber($number)
  end
  members = redis.call('LRANGE', list, from, from + max - 1)
  for i in ipairs(members) do
    numbers[i] = from + i - 1
  end
else
  local set = $state == 'scheduled' and @scheduled or $state == 'done' and @done or $state == 'dead' and @dead or @cancelled
  local reverse, from = ($state == 'scheduled') == ($reversed == '1'), 0
  if last ~= '' or $number ~= '0' then
    local rank = redis.call(reverse and 'ZREVRANK' or 'ZRANK', set, last)
    local bounds = reverse and { '(' .. $number, '+inf' } or { '-inf', '(' .. $number }
    from = rank and rank + 1 or redis.call('ZCOUNT', set, bounds[1], bounds[2])
  end
  local found = redis.call(reverse and 'ZREVRANGE' or 'ZRANGE', set, from, from + max - 1, 'WITHSCORES')
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
local records, all = read_records(ids, 1048576, 1), #members
for i = all, #records + 1, -1 do
  members[i], ids[i] = nil, nil
end
if $state == 'ready' then
  local stale, marked = redis.call('SMISMEMBER', @stale, unpack(members)), {}
  for i, member in ipairs(members) do
    -- Only one of two equal tickets is stale.
    local is_stale = stale[i] == 1 and not marked[member]
    records[i] = not is_stale and records[i]
    marked[member] = is_stale
  end
end
return { now, members, numbers, records, redis.call('HMGET', @meta, unpack(ids)), all }
