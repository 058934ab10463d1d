#!lua flags=no-writes
-- crons: returns one cron rule of a queue, or a page of all of them.
-- keys: conf cron
-- args: now name cursor
--   name: '' for a page
-- Returns { now, cursor, { rule } }
-- include read_time, check_format
local PAGE = 200
if $name ~= '' then
  local found = redis.call('HGET', @cron, $name)
  return { now, '0', found and { found } or {} }
end
local page = redis.call('HSCAN', @cron, $cursor, 'COUNT', PAGE)
local rules = {}
for at = 2, #page[2], 2 do
  rules[#rules + 1] = page[2][at]
end
return { now, page[1], rules }
