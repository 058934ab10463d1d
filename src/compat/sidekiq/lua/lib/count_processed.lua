-- count_processed: adds to a counter of all time and to that of today.
local DAYS_KEPT = 5 * 365 * 86400

local function count_processed(total, today, more)
  if more > 0 then
    -- pcall: a damaged counter stays as it is.
    redis.pcall('INCRBY', total, more)
    redis.pcall('INCRBY', today, more)
    redis.call('EXPIRE', today, DAYS_KEPT)
  end
end
