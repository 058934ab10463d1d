-- find_oldest_ready: returns since when the first jobs of the ready lists could have been claimed, or nil if none is ready.
-- Looks past a few stale tickets at the head of a list, not past many.
local NEAR = 10

local function read_due(id)
  local meta = redis.call('HGET', @meta, id)
  local due = meta and tonumber(meta:sub(1, 16)) or 0
  if due > 0 then
    return due
  end
  local pushed, first = (redis.call('HGET', @job, id) or ''):match('^[^\t]*\t[^\t]*\t(%d+)\t(%d*)\t')
  return tonumber(first ~= '' and first or pushed or '')
end

local function find_head(list, has_stale)
  for _, ticket in ipairs(redis.call('LRANGE', list, 0, has_stale and NEAR - 1 or 0)) do
    if not has_stale or redis.call('SISMEMBER', @stale, ticket) == 0 then
      return ticket:sub(1, 16)
    end
  end
end

local function find_oldest_ready(has_stale)
  local oldest
  for list = 1, 4 do
    local head = find_head(@ready[list], has_stale)
    local due = head and read_due(head)
    if due and due < (oldest or math.huge) then
      oldest = due
    end
  end
  return oldest
end
