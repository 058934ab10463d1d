-- increment_field: adds a number, or its digits, to a counter in a hash. A damaged counter starts again from this number,
-- because an error here would leave a half-finished change behind.
local function increment_field(key, field, by)
  local digits = type(by) == 'number' and string.format('%.0f', by) or by
  if type(redis.pcall('HINCRBY', key, field, digits)) == 'table' then
    redis.call('HSET', key, field, digits)
  end
end
