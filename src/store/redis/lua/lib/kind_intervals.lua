-- kind_intervals: adds counters by kind to the current interval. Fields: `INTERVAL.KIND` has the counters; `INTERVAL` has its kinds,
-- each followed by a space; `newest` is the last interval; all up to `dropped` are deleted.
-- functions: drop_intervals, add_kinds
-- needs: merge_counters
local STEP = 48

-- Deletes intervals up to `last`, at most STEP with counters in one call.
local function drop_intervals(key, last, current)
  local marks = redis.call('HMGET', key, 'dropped', 'newest')
  local dropped = math.min(tonumber(marks[1]) or last, last)
  if (tonumber(marks[2]) or current) <= last then
    redis.call('UNLINK', key)
    dropped = last
  end
  local deleted = 0
  while dropped < last and deleted < STEP do
    dropped = dropped + 1
    local field = string.format('%.0f', dropped)
    local names = redis.call('HGET', key, field)
    if names then
      deleted = deleted + 1
      for kind in names:gmatch('[^ ]+') do
        redis.call('HDEL', key, field .. '.' .. kind)
      end
      redis.call('HDEL', key, field)
    end
  end
  redis.call('HSET', key, 'dropped', string.format('%.0f', dropped), 'newest', string.format('%.0f', current))
end

-- Adds the counters in the arguments.
local function add_kinds(key, micros, kept, max_kinds)
  local interval = math.floor(now / micros)
  local field = string.format('%.0f', interval)
  local names = redis.call('HGET', key, field) or ''
  if names == '' then
    drop_intervals(key, interval - kept, interval)
  end
  local _, known = names:gsub(' ', '')
  for at = &counts, #ARGV, 2 do
    local kind = ARGV[at]
    local before = redis.call('HGET', key, field .. '.' .. kind)
    if not before and known >= max_kinds then
      kind = $rest
      before = redis.call('HGET', key, field .. '.' .. kind)
    end
    if not before then
      names, known = names .. kind .. ' ', known + 1
    end
    redis.call('HSET', key, field .. '.' .. kind, merge_counters(before or '', ARGV[at + 1]))
  end
  redis.call('HSET', key, field, names)
end
