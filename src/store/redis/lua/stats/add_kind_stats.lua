#!lua flags=allow-oom
-- add_kind_stats: adds outcomes of attempts, by kind, to the current hour. The first call of a new hour deletes hours that are too old.
-- keys: kinds
-- args: now max_hours max_kinds rest counts...
--   max_kinds: in one hour; rest: the kind for all beyond; counts: kind; then for each counter: its number (two digits), count, a space
-- Returns { now }
-- include read_time
local hour = math.floor(now / 3600000000)
local field = string.format('%.0f', hour)
local known = tonumber(redis.call('HGET', @kinds, field)) or 0
if known == 0 then
  for _, old in ipairs(redis.call('HKEYS', @kinds)) do
    if (tonumber(old:match('^%d+')) or 0) <= hour - tonumber($max_hours) then
      redis.call('HDEL', @kinds, old)
    end
  end
end
for at = &counts, #ARGV, 2 do
  local of = field .. '.' .. ARGV[at]
  local before = redis.call('HGET', @kinds, of)
  if not before and known >= tonumber($max_kinds) then
    of = field .. '.' .. $rest
    before = redis.call('HGET', @kinds, of)
  end
  known = before and known or known + 1
  local counts, counters = {}, {}
  for counter, count in ((before or '') .. ARGV[at + 1]):gmatch('(%d%d)(%d+) ') do
    if not counts[counter] then
      counters[#counters + 1] = counter
    end
    counts[counter] = (counts[counter] or 0) + tonumber(count)
  end
  for i, counter in ipairs(counters) do
    counters[i] = counter .. string.format('%.0f ', counts[counter])
  end
  redis.call('HSET', @kinds, of, table.concat(counters))
end
redis.call('HSET', @kinds, field, known)
return { now }
