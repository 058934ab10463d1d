#!lua flags=no-writes
-- crons: one rule of a queue, or a step through all of them.
-- KEYS 1 cron
-- ARGV 1 now|'' 2 name|'' 3 cursor
-- Returns { now, cursor, { rule } }
-- include now
local STEP = 200
if ARGV[2] ~= '' then
  local found = redis.call('HGET', KEYS[1], ARGV[2])
  return { now, '0', found and { found } or {} }
end
local page = redis.call('HSCAN', KEYS[1], ARGV[3], 'COUNT', STEP)
local rules = {}
for at = 2, #page[2], 2 do
  rules[#rules + 1] = page[2][at]
end
return { now, page[1], rules }
