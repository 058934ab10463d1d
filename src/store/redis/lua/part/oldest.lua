-- oldest: since when a queue's first ready jobs could have been claimed, by the heads of its ready lists; nil if none is ready.
-- Looks past a few tickets that are stale, not past many.
local NEAR = 10

local function due_of(job, meta, id)
  local changed = redis.call('HGET', meta, id)
  local due = changed and tonumber(changed:sub(1, 16)) or 0
  if due > 0 then
    return due
  end
  local pushed, first = (redis.call('HGET', job, id) or ''):match('^[^\t]*\t[^\t]*\t(%d+)\t(%d*)\t')
  return tonumber(first ~= '' and first or pushed or '')
end

local function head_of(list, stale, any_stale)
  for _, ticket in ipairs(redis.call('LRANGE', list, 0, any_stale and NEAR - 1 or 0)) do
    if not any_stale or redis.call('SISMEMBER', stale, ticket) == 0 then
      return ticket:sub(1, 16)
    end
  end
end
