#!lua flags=allow-oom
-- take_back: what a dead node held goes back to the front of its queue, byte for byte, in bounded steps, a crash noted for each.
-- KEYS 1 conf 2 lease 3 since 4 idle 5 nodes 6 held 7 queue 8 crashes
-- ARGV 1 now|'' 2 channel 3 node 4 suspect 5 lease 6 most to take
-- Returns { now, how many, how many are left }
-- include now, text, wake, dismiss, chunks
local SCAN, SCANS, REMEMBER = 500, 5, 30 * 86400
local node, suspect, most = ARGV[3], ARGV[4], tonumber(ARGV[6])
local ends = tonumber(redis.call('ZSCORE', KEYS[2], suspect))
local since = tonumber(redis.call('ZSCORE', KEYS[3], node)) or now
-- A lease that ends at 0 is one given up. Else only who has been in contact for a whole lease may tell death from an outage.
if not ends or ends >= now or (ends > 0 and now - since < tonumber(ARGV[5])) then
  return { now, 0, 0 }
end
-- They stay where they are while something else is in the place of their queue.
local kind = redis.call('TYPE', KEYS[7]).ok
if kind ~= 'list' and kind ~= 'none' then
  return { now, 0, 0 }
end
local fields, entries, cursor = {}, {}, '0'
for _ = 1, SCANS do
  local step = redis.call('HSCAN', KEYS[6], cursor, 'COUNT', SCAN)
  for i = 1, #step[2], 2 do
    if #fields < most and not entries[step[2][i]] then
      fields[#fields + 1] = step[2][i]
      entries[step[2][i]] = step[2][i + 1]
    end
  end
  cursor = step[1]
  if cursor == '0' or #fields == most then
    break
  end
end
-- What was claimed first is put back last: it is served first.
table.sort(fields, function(a, b) return a > b end)
local back = {}
for i, field in ipairs(fields) do
  back[i] = entries[field]
  local sum = redis.sha1hex(back[i])
  local crashes = tonumber((redis.call('HGET', KEYS[8], sum) or '0'):match('^%d+')) or 0
  redis.call('HSET', KEYS[8], sum, crashes + 1 .. ' ' .. text(now) .. suspect)
end
local left = 0
if #fields > 0 then
  chunks('RPUSH', KEYS[7], back)
  chunks('HDEL', KEYS[6], fields)
  redis.call('EXPIRE', KEYS[8], REMEMBER)
  left = redis.call('HLEN', KEYS[6])
  redis.call('HSET', KEYS[1], suspect, left)
  wake(KEYS[4], ARGV[2])
end
if left == 0 then
  dismiss(suspect)
end
return { now, #fields, left }
