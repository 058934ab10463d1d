#!lua flags=allow-oom
-- totals: what has ever been counted in a queue. What can be added up once and for all is.
-- KEYS 1 conf 2 history
-- ARGV 1 now|''
-- Returns { now, 1: there is more to add up, ask again, { 62 numbers } }
-- include now, whole, add, roll
local rolled, more = roll(KEYS[2], KEYS[1])
local sums = {}
add_up(sums, numbers_of(KEYS[2], 'total'))
for minute = rolled + 1, math.min(math.floor(now / 60000000), rolled + MINUTES) do
  add_up(sums, numbers_of(KEYS[2], string.format('%.0f', minute)))
end
for place, sum in ipairs(sums) do
  sums[place] = string.format('%.0f', sum)
end
return { now, more and 1 or 0, sums }
