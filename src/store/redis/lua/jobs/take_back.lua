#!lua flags=allow-oom
-- take_back: moves jobs that a dead node held back to the head of the ready lists, and counts a crash for each; for a suspect
-- only if it ran alone. One call moves a bounded number.
-- keys: conf lease since idle nodes running job meta runs cancelled unique ready[4] counted_history
-- args: now channel node suspect lease cursor max_jobs reason
-- Returns { now, how many were moved, cursor, how many are left }
-- include read_time, check_format, increment_field, to_digits, parse_int, record_fields, run_limits, add_run, count_crash
-- include wake_node, push_tickets, count_held, subtract_held, forget_node, count_event, read_cancel_keep
local SCAN, SCANS = 500, 5
-- A job that was taken back has a meta, so its ticket has a letter.
local LETTERS = { ['0'] = 'a', ['1'] = 'b', ['2'] = 'c', ['3'] = 'd' }
local suspect, cursor, max = $suspect, $cursor, tonumber($max_jobs)
local ends = tonumber(redis.call('ZSCORE', @lease, suspect))
local since, own = tonumber(redis.call('ZSCORE', @since, $node)) or now, tonumber(redis.call('ZSCORE', @lease, $node)) or 0
-- A lease of 0 was given up. Otherwise only a node that has been in contact for a whole lease can tell a death from an outage.
if not ends or ends >= now or (ends > 0 and (own < now or now - since < tonumber($lease))) then
  return { now, 0, '0', 0 }
end
local taken, flags, cancelled = {}, {}, {}
for _ = 1, SCANS do
  local page = redis.call('HSCAN', @running, cursor, 'COUNT', SCAN)
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    if #taken < max and not flags[id] and value:sub(1, 36) == suspect then
      taken[#taken + 1] = string.format('%-16s', value:sub(38, 53)) .. id
      flags[id], cancelled[id] = value:sub(65):match('^[0-3a-d]') or '2', read_cancel_keep(value)
    end
  end
  -- If the limit is reached, the next call reads the rest of this page again.
  cursor = #taken < max and page[1] or cursor
  if #taken == max or cursor == '0' then
    break
  end
end
table.sort(taken, function(a, b) return a > b end)
local tickets, alone = {}, redis.call('HGET', @conf, 'alone:' .. suspect)
for _, fence_and_id in ipairs(taken) do
  local id = fence_and_id:sub(17)
  local ticket_number = count_crash(id, suspect, $reason, fence_and_id == alone)
  if cancelled[id] then
-- include insert_cancelled, publish_completed, end_cancelled
    end_cancelled(id, cancelled[id])
  else
    tickets[#tickets + 1] = id .. (LETTERS[flags[id]] or flags[id]) .. ticket_number
  end
  redis.call('HDEL', @running, id)
end
push_tickets('LPUSH', tickets)
-- A scan of everything has found all jobs of the node, whatever its count says.
local left = subtract_held(@conf, suspect, #taken)
left = $cursor == '0' and cursor == '0' and #taken < max and 0 or left
if left <= 0 then
  forget_node(suspect)
end
if #taken > 0 then
  count_event(@counted_history, '05', #taken)
  wake_node(@idle, $channel)
end
return { now, #taken, cursor, left }
