#!lua flags=allow-oom
-- verify_held: compares the jobs that each node holds with the counts in conf. With repair, corrects conf.
-- keys: conf running stale
-- args: now repair
-- Returns { now, { node, jobs, jobs by conf } that differ, highest fence held, last fence, 1 if conf hides stale tickets }
-- include read_time, check_format, to_digits, parse_int, count_held
local counts, differ, highest = {}, {}, 0
for _, value in ipairs(redis.call('HVALS', @running)) do
  local node = value:sub(1, 36)
  counts[node] = (counts[node] or 0) + 1
  highest = math.max(highest, parse_int(value:sub(38, 53), 16))
end
local fields = redis.call('HKEYS', @conf)
for _, node in ipairs(fields) do
  if #node == 36 and not counts[node] then
    counts[node] = 0
  end
end
for node, count in pairs(counts) do
  local by_conf = count_held(@conf, node)
  if by_conf ~= count then
    differ[#differ + 1] = { node, count, by_conf }
  end
end
local last = parse_int(redis.call('HGET', @conf, 'fence'), 16)
local is_hidden = redis.call('SCARD', @stale) > 0 and redis.call('HEXISTS', @conf, 'has_stale') == 0
if $repair == '1' then
  for _, row in ipairs(differ) do
    redis.call('HSET', @conf, row[1], row[2])
  end
  if highest > last then
    redis.call('HSET', @conf, 'fence', to_digits(highest))
  end
  if is_hidden then
    redis.call('HSET', @conf, 'has_stale', 1)
  end
end
return { now, differ, to_digits(highest), to_digits(last), is_hidden and 1 or 0 }
