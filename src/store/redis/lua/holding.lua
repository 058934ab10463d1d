#!lua flags=no-writes
-- holding: a step through everything that a node, or anybody if it is '', holds in a queue.
-- KEYS 1 held 2 job 3 meta
-- ARGV 1 now|'' 2 node 3 cursor
-- Returns { now, cursor, { id }, { held value }, { record }, { meta } }
-- include now
local SCAN = 200
local step = redis.call('HSCAN', KEYS[1], ARGV[3], 'COUNT', SCAN)
local ids, values, seen = {}, {}, {}
for i = 1, #step[2], 2 do
  local id, value = step[2][i], step[2][i + 1]
  if not seen[id] and (ARGV[2] == '' or value:sub(1, 36) == ARGV[2]) then
    seen[id] = true
    ids[#ids + 1] = id
    values[#values + 1] = value
  end
end
if #ids == 0 then
  return { now, step[1], {}, {}, {}, {} }
end
return {
  now,
  step[1],
  ids,
  values,
  redis.call('HMGET', KEYS[2], unpack(ids)),
  redis.call('HMGET', KEYS[3], unpack(ids)),
}
