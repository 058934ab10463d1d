-- add: so many more in a field that counts, as a number or as its digits. One that somebody has damaged begins anew: a script must
-- not fail half-way.
local function add(key, field, more)
  local digits = type(more) == 'number' and string.format('%.0f', more) or more
  if type(redis.pcall('HINCRBY', key, field, digits)) == 'table' then
    redis.call('HSET', key, field, digits)
  end
end
