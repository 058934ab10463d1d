-- The history of a job in trouble: one field per failure, numbered, of which the newest 50 stay.
local HISTORY = 50

local function drop_history(errors, id, meta)
  local last = count(meta, 53)
  local fields = {}
  for n = math.max(1, last - HISTORY + 1), last do
    fields[#fields + 1] = id .. n
  end
  if #fields > 0 then
    redis.call('HDEL', errors, unpack(fields))
  end
end

local function add_history(errors, id, n, entry)
  redis.call('HSET', errors, id .. n, entry)
  if n > HISTORY then
    redis.call('HDEL', errors, id .. (n - HISTORY))
  end
end
