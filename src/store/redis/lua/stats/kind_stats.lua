#!lua flags=no-writes
-- kind_stats: returns outcomes of attempts by interval and kind.
-- keys: kinds kind_minutes
-- args: now unit first_ago intervals kind
--   unit: hour or minute; first_ago: how many intervals ago the first is; intervals: how many; kind: only this one, or empty for all
-- Returns { now, { for each interval and kind: interval, kind, its counters } }
-- include read_time
local key, micros = @kinds, 3600000000
if $unit == 'minute' then
  key, micros = @kind_minutes, 60000000
end
local first, found = math.floor(now / micros) - $first_ago, {}
for interval = first, first + $intervals - 1 do
  local field = string.format('%.0f', interval)
  local names = $kind ~= '' and $kind or redis.call('HGET', key, field) or ''
  for kind in names:gmatch('[^ ]+') do
    local counters = redis.call('HGET', key, field .. '.' .. kind)
    if counters then
      found[#found + 1], found[#found + 2], found[#found + 3] = field, kind, counters
    end
  end
end
return { now, found }
