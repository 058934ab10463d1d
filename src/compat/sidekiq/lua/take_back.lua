#!lua flags=allow-oom
-- take_back: moves entries that a dead node held back to the front of its queue, byte for byte, and counts a crash for each; for a
-- suspect only if it ran alone. One call moves a bounded number.
-- keys: conf lease since idle nodes running list crashes
-- args: now channel node suspect lease max_jobs
-- Returns { now, how many were moved, how many are left }
-- include read_time, check_format, to_digits, wake_node, forget_node, call_in_chunks
local SCAN, SCANS, REMEMBER, SUSPECT_CRASHES = 500, 5, 30 * 86400, 2
local suspect, max = $suspect, tonumber($max_jobs)
local ends = tonumber(redis.call('ZSCORE', @lease, suspect))
local since, own = tonumber(redis.call('ZSCORE', @since, $node)) or now, tonumber(redis.call('ZSCORE', @lease, $node)) or 0
-- A lease of 0 was given up. Otherwise only a node that has been in contact for a whole lease can tell a death from an outage.
if not ends or ends >= now or (ends > 0 and (own < now or now - since < tonumber($lease))) then
  return { now, 0, 0 }
end
-- The entries stay held while the key of the queue has a value of another type.
local kind = redis.call('TYPE', @list).ok
if kind ~= 'list' and kind ~= 'none' then
  return { now, 0, 0 }
end
local fields, entries, cursor = {}, {}, '0'
for _ = 1, SCANS do
  local page = redis.call('HSCAN', @running, cursor, 'COUNT', SCAN)
  for i = 1, #page[2], 2 do
    if #fields < max and not entries[page[2][i]] then
      fields[#fields + 1] = page[2][i]
      entries[page[2][i]] = page[2][i + 1]
    end
  end
  cursor = page[1]
  if cursor == '0' or #fields == max then
    break
  end
end
-- The entry that was claimed first is put back last, so that it is claimed first again.
table.sort(fields, function(a, b) return a > b end)
local back, alone = {}, redis.call('HGET', @conf, 'alone:' .. suspect)
for i, field in ipairs(fields) do
  back[i] = entries[field]
  local sum = redis.sha1hex(back[i])
  local crashes = tonumber((redis.call('HGET', @crashes, sum) or '0'):match('^%d+')) or 0
  local counted = (field == alone or crashes < SUSPECT_CRASHES) and crashes + 1 or crashes
  redis.call('HSET', @crashes, sum, counted .. ' ' .. to_digits(now) .. suspect)
end
local left = 0
if #fields > 0 then
  call_in_chunks('RPUSH', @list, back)
  call_in_chunks('HDEL', @running, fields)
  redis.call('EXPIRE', @crashes, REMEMBER)
  left = redis.call('HLEN', @running)
  redis.call('HSET', @conf, suspect, left)
  wake_node(@idle, $channel)
end
if left == 0 then
  forget_node(suspect)
end
return { now, #fields, left }
