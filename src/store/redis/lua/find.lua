#!lua flags=no-writes
-- find: a part of the jobs of one state that have one word, in their order; of several words the one that fewest have.
-- KEYS 1 job 2 meta 3 find
-- ARGV 1 now|'' 2 1: the last comes first 3 where the last page ended|'' 4 its moment 5 from this moment on 6 before this one, all
--      of 16 digits 7 most 8... words, each with its state in front and a 0 byte behind
-- Returns { now, { id }, { moment }, { record }, { meta }, how many there were }: not all if they are long
-- include now, bodies
local last, since, before, most = ARGV[3], ARGV[5], ARGV[6], tonumber(ARGV[7])
local reverse = ARGV[2] == '1'
local word, fewest = ARGV[8], math.huge
for at = 8, #ARGV > 8 and #ARGV or 0 do
  local count = redis.call('ZLEXCOUNT', KEYS[3], '[' .. ARGV[at] .. since, '(' .. ARGV[at] .. before)
  if count < fewest then
    word, fewest = ARGV[at], count
  end
end
local from, to = '[' .. word .. since, '(' .. word .. before
local behind = '(' .. word .. ARGV[4] .. last
local found
if reverse then
  found = redis.call('ZRANGE', KEYS[3], last ~= '' and behind or to, from, 'BYLEX', 'REV', 'LIMIT', 0, most)
else
  found = redis.call('ZRANGE', KEYS[3], last ~= '' and behind or from, to, 'BYLEX', 'LIMIT', 0, most)
end
if #found == 0 then
  return { now, {}, {}, {}, {}, 0 }
end
local ids, moments = {}, {}
for i, member in ipairs(found) do
  ids[i], moments[i] = member:sub(-16), member:sub(-32, -17)
end
local records = bodies(KEYS[1], ids, 1048576, 1)
for i = #found, #records + 1, -1 do
  ids[i] = nil
end
return { now, ids, moments, records, redis.call('HMGET', KEYS[2], unpack(ids)), #found }
