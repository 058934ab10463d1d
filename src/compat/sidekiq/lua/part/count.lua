-- count: adds to a counter of all time, by the number of its key, and to that of the day behind it.
local DAYS_KEPT = 5 * 365 * 86400

local function count(key, more)
  if more > 0 then
    -- One that somebody has damaged stays as it is.
    redis.pcall('INCRBY', KEYS[key], more)
    redis.pcall('INCRBY', KEYS[key + 1], more)
    redis.call('EXPIRE', KEYS[key + 1], DAYS_KEPT)
  end
end
