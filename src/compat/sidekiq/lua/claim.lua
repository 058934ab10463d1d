#!lua flags=allow-oom
-- claim: takes the oldest entries of a queue with a kind that the node handles. All others stay where they are.
-- keys: conf lease since nodes running list schedule retry crashes idle
-- args: now channel node max_jobs lease was_idle ignores_due any_kind kinds...
--   ignores_due: 1 if entries are taken although others are due; any_kind: 1 if the node handles every kind
-- Returns { now, 'took' | 'due' | why not, fence, 1 if there may be more, next due|'', rank, { entry }, { for each job: crashes, if any } }
-- include read_time, to_digits, wake_node, check_entry_list, match_kind, take_entries, parse_int, ensure_lease
local node, max = $node, tonumber($max_jobs)
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'fence', node)
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local is_closed, last, held_before = conf[2] or conf[3], parse_int(conf[4], 16), parse_int(conf[5], 15)
local fence, next_due = to_digits(math.max(last + 1, now)), math.huge
for _, set in ipairs({ @schedule, @retry }) do
  local first = tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2])
  next_due = math.min(next_due, first and math.floor(first * 1000000 + 0.5) or math.huge)
end
if not is_closed and next_due <= now and $ignores_due ~= '1' then
  return { now, 'due' }
end
local taken, crashes, held, rank, more, too_long = {}, {}, {}, 0, 0, false
if not is_closed then
  local why = check_entry_list(@list)
  if why then
    return { now, why }
  end
  taken, too_long = take_entries(max)
end
if #taken > 0 then
  local crashed, sums = redis.call('EXISTS', @crashes) == 1, {}
  for i, entry in ipairs(taken) do
    held[2 * i - 1], held[2 * i] = fence .. string.format(':%04d', i), entry
    sums[i] = crashed and redis.sha1hex(entry)
  end
  crashes = crashed and redis.call('HMGET', @crashes, unpack(sums)) or {}
  redis.call('HSET', @running, unpack(held))
  redis.call('HSET', @conf, 'fence', fence, node, held_before + #taken)
  if held_before <= 0 then
    ensure_lease(node, tonumber($lease))
  end
end
if #taken < max and not too_long then
  redis.call('ZADD', @idle, now, node)
  rank = redis.call('ZRANK', @idle, node)
else
  if $was_idle == '1' then
    redis.call('ZREM', @idle, node)
  end
  more = 1
  if redis.call('EXISTS', @idle) == 1 and redis.call('EXISTS', @list) == 1 then
    wake_node(@idle, $channel)
  end
end
local soon = not is_closed and next_due < math.huge and to_digits(next_due) or ''
return { now, 'took', fence, more, soon, rank, taken, crashes }
