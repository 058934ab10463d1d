#!lua flags=allow-oom
-- take_back: moves jobs that a dead node held back to the head of the ready lists, and counts a crash for each. One call moves
-- a bounded number.
-- keys: conf lease since idle nodes running meta failures ready[4] counted_history
-- args: now channel node suspect lease cursor max_jobs reason
-- Returns { now, how many were moved, cursor, how many are left }
-- include read_time, check_format, increment_field, to_digits, parse_int, record_fields, failure_limits, add_failure, count_crash
-- include wake_node, push_tickets, count_held, subtract_held, forget_node, count_event
local SCAN, SCANS = 500, 5
local LETTERS = { ['0'] = 'a', ['1'] = 'b', ['2'] = 'c', ['3'] = 'd' }
local suspect, cursor, max = $suspect, $cursor, tonumber($max_jobs)
local ends = tonumber(redis.call('ZSCORE', @lease, suspect))
local since = tonumber(redis.call('ZSCORE', @since, $node)) or now
-- A lease of 0 was given up. Otherwise only a node that has been in contact for a whole lease can tell a death from an outage.
if not ends or ends >= now or (ends > 0 and now - since < tonumber($lease)) then
  return { now, 0, '0', 0 }
end
local taken, flags = {}, {}
for _ = 1, SCANS do
  local page = redis.call('HSCAN', @running, cursor, 'COUNT', SCAN)
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    if #taken < max and not flags[id] and value:sub(1, 36) == suspect then
      taken[#taken + 1] = string.format('%-16s', value:sub(38, 53)) .. id
      flags[id] = value:sub(65):match('^[0-3a-d]') or '2'
    end
  end
  -- If the limit is reached, the next call reads the rest of this page again.
  cursor = #taken < max and page[1] or cursor
  if #taken == max or cursor == '0' then
    break
  end
end
table.sort(taken, function(a, b) return a > b end)
local tickets = {}
for i, fence_and_id in ipairs(taken) do
  local id = fence_and_id:sub(17)
  local ticket_number = count_crash(id, suspect, $reason)
  -- The job has a meta now, so its ticket has a letter.
  tickets[i] = id .. (LETTERS[flags[id]] or flags[id]) .. ticket_number
  redis.call('HDEL', @running, id)
end
push_tickets('LPUSH', tickets)
local left = subtract_held(@conf, suspect, #taken)
-- A scan of everything has found all jobs of the node, whatever its count says.
if $cursor == '0' and cursor == '0' and #taken < max then
  left = 0
end
if left <= 0 then
  forget_node(suspect)
end
if #taken > 0 then
  count_event(@counted_history, '05', #taken)
  wake_node(@idle, $channel)
end
return { now, #taken, cursor, left }
