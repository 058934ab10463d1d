-- Notes of a job: its id and 'n' to the number of its last line, 'p' to its progress, 'r' to what it gave, 'l' and a number to a
-- line, of which the newest 100 stay. Whoever has any has an 'n'.
local LINES = 100

local function drop_notes(notes, ids)
  if #ids == 0 or redis.call('EXISTS', notes) == 0 then
    return
  end
  local lasts = {}
  for i, id in ipairs(ids) do
    lasts[i] = id .. 'n'
  end
  lasts = redis.call('HMGET', notes, unpack(lasts))
  for i, id in ipairs(ids) do
    if lasts[i] then
      local last, fields = tonumber(lasts[i]) or 0, { id .. 'n', id .. 'p', id .. 'r' }
      for n = math.max(1, last - LINES + 1), last do
        fields[#fields + 1] = id .. 'l' .. n
      end
      redis.call('HDEL', notes, unpack(fields))
    end
  end
end

local function keep_result(notes, id, result)
  if result ~= '' then
    redis.call('HSETNX', notes, id .. 'n', 0)
    redis.call('HSET', notes, id .. 'r', result)
  end
end
