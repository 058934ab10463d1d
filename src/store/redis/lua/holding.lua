#!lua flags=no-writes
-- holding: a step through everything that a node, or anybody if it is '', holds in a queue.
-- KEYS 1 held 2 job 3 meta
-- ARGV 1 now|'' 2 node 3 cursor
-- Returns { now, cursor, { id }, { held value }, { record }, { meta }, { the cursor that it stands behind } }
-- include now
-- A few at a time: each may have a megabyte.
local SCAN, FEW, BYTES = 200, 8, 1048576
local cursor, bytes, looked = ARGV[3], 0, 0
local ids, values, records, metas, froms, seen = {}, {}, {}, {}, {}, {}
repeat
  local from = cursor
  local step = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', FEW)
  local some = {}
  cursor, looked = step[1], looked + FEW
  for i = 1, #step[2], 2 do
    local id, value = step[2][i], step[2][i + 1]
    if not seen[id] and (ARGV[2] == '' or value:sub(1, 36) == ARGV[2]) then
      seen[id] = true
      some[#some + 1] = id
      values[#values + 1] = value
    end
  end
  if #some > 0 then
    local found, more = redis.call('HMGET', KEYS[2], unpack(some)), redis.call('HMGET', KEYS[3], unpack(some))
    for i, id in ipairs(some) do
      local at = #ids + 1
      ids[at], records[at], metas[at], froms[at] = id, found[i], more[i], from
      bytes = bytes + (found[i] and #found[i] or 0)
    end
  end
until cursor == '0' or looked >= SCAN or bytes > BYTES
return { now, cursor, ids, values, records, metas, froms }
