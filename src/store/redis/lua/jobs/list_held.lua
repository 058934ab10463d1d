#!lua flags=no-writes
-- list_held: reads a page of the jobs that a node holds in a queue, or that any node holds.
-- keys: conf running job meta
-- args: now node cursor
--   node: '' is any
-- Returns { now, cursor, { id }, { held value }, { record }, { meta }, { the cursor before each } }
-- include read_time, check_format
-- A few at a time: each record may have a megabyte.
local SCAN, FEW, BYTES = 200, 8, 1048576
local cursor, bytes, looked = $cursor, 0, 0
local ids, values, records, metas, cursors, seen = {}, {}, {}, {}, {}, {}
repeat
  local from = cursor
  local page = redis.call('HSCAN', @running, cursor, 'COUNT', FEW)
  local some = {}
  cursor, looked = page[1], looked + FEW
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    if not seen[id] and ($node == '' or value:sub(1, 36) == $node) then
      seen[id] = true
      some[#some + 1] = id
      values[#values + 1] = value
    end
  end
  if #some > 0 then
    local found, changed = redis.call('HMGET', @job, unpack(some)), redis.call('HMGET', @meta, unpack(some))
    for i, id in ipairs(some) do
      local at = #ids + 1
      ids[at], records[at], metas[at], cursors[at] = id, found[i], changed[i], from
      bytes = bytes + (found[i] and #found[i] or 0)
    end
  end
until cursor == '0' or looked >= SCAN or bytes > BYTES
return { now, cursor, ids, values, records, metas, cursors }
