#!lua flags=allow-oom
-- take_back: what a dead node held goes back to the head of the ready lists, in bounded steps, a crash counted for each.
-- KEYS 1 conf 2 lease 3 since 4 idle 5 nodes 6 held 7 meta 8 errors 9-12 ready 13 history
-- ARGV 1 now|'' 2 channel 3 node 4 suspect 5 lease 6 cursor 7 most to take 8 what the history says
-- Returns { now, how many, cursor, how many are left }
-- include now, add, text, wake, spread, read, history, crash, whole, holds, dismiss, tally
local SCAN, SCANS = 500, 5
local LETTERS = { ['0'] = 'a', ['1'] = 'b', ['2'] = 'c', ['3'] = 'd' }
local node, suspect, cursor, most = ARGV[3], ARGV[4], ARGV[6], tonumber(ARGV[7])
local ends = tonumber(redis.call('ZSCORE', KEYS[2], suspect))
local since = tonumber(redis.call('ZSCORE', KEYS[3], node)) or now
-- A lease that ends at 0 is one given up. Else only who has been in contact for a whole lease may tell death from an outage.
if not ends or ends >= now or (ends > 0 and now - since < tonumber(ARGV[5])) then
  return { now, 0, '0', 0 }
end
local taken, flags = {}, {}
for _ = 1, SCANS do
  local step = redis.call('HSCAN', KEYS[6], cursor, 'COUNT', SCAN)
  for i = 1, #step[2], 2 do
    local id, value = step[2][i], step[2][i + 1]
    if #taken < most and not flags[id] and value:sub(1, 36) == suspect then
      taken[#taken + 1] = string.format('%-16s', value:sub(38, 53)) .. id
      flags[id] = value:sub(65):match('^[0-3a-d]') or '2'
    end
  end
  -- Full: the rest of this step is looked at again next time.
  if #taken == most then
    break
  end
  cursor = step[1]
  if cursor == '0' then
    break
  end
end
table.sort(taken, function(a, b) return a > b end)
local tickets = {}
for i, fence_and_id in ipairs(taken) do
  local id = fence_and_id:sub(17)
  local turn = count_crash(id, suspect, ARGV[8])
  -- It has a meta now, which its ticket says by a letter.
  tickets[i] = id .. (LETTERS[flags[id]] or flags[id]) .. turn
  redis.call('HDEL', KEYS[6], id)
end
spread('LPUSH', 9, tickets)
local left = holds_fewer(KEYS[1], suspect, #taken)
-- One look through everything has found all there is, whatever the count says.
if ARGV[6] == '0' and cursor == '0' and #taken < most then
  left = 0
end
if left <= 0 then
  dismiss(suspect)
end
if #taken > 0 then
  happened(KEYS[13], '05', #taken)
  wake(KEYS[4], ARGV[2])
end
return { now, #taken, cursor, left }
