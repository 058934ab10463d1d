#!lua flags=no-writes
-- list_by_index: reads a page of the jobs of one state that have a term, in their order. Of several terms, the page is read by
-- the one that the fewest jobs have.
-- keys: conf job meta job_index
-- args: now reverse last last_time since before max_jobs terms...
--   reverse: 1 if the last comes first; last, last_time: where the last page ended|'', and its time; since, before: the range of
--   times, 16 digits each; terms: each with its state in front and a 0 byte behind
-- Returns { now, { id }, { time }, { record }, { meta }, how many there were }: not all if they are long
-- include read_time, check_format, read_records
local last, since, before, max = $last, $since, $before, tonumber($max_jobs)
local term, fewest = $terms[1], math.huge
for at = &terms, #$terms > 1 and #ARGV or 0 do
  local count = redis.call('ZLEXCOUNT', @job_index, '[' .. ARGV[at] .. since, '(' .. ARGV[at] .. before)
  if count < fewest then
    term, fewest = ARGV[at], count
  end
end
local from, to = '[' .. term .. since, '(' .. term .. before
local after = '(' .. term .. $last_time .. last
local found
if $reverse == '1' then
  found = redis.call('ZRANGE', @job_index, last ~= '' and after or to, from, 'BYLEX', 'REV', 'LIMIT', 0, max)
else
  found = redis.call('ZRANGE', @job_index, last ~= '' and after or from, to, 'BYLEX', 'LIMIT', 0, max)
end
if #found == 0 then
  return { now, {}, {}, {}, {}, 0 }
end
local ids, times = {}, {}
for i, member in ipairs(found) do
  ids[i], times[i] = member:sub(-16), member:sub(-32, -17)
end
local records = read_records(ids, 1048576, 1)
for i = #found, #records + 1, -1 do
  ids[i] = nil
end
return { now, ids, times, records, redis.call('HMGET', @meta, unpack(ids)), #found }
