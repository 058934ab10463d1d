-- list_cancelled: returns jobs that a node holds and that were cancelled, as many as one reply lists. `listed` is the field of conf
-- that names them, 16 bytes each; jobs that the node no longer holds are removed from it. `cursor` is nil, or where a scan for
-- further jobs continues. One call reads a bounded number of them.
-- needs: cancelled_limits
local SCAN, SCANS = 500, 5
local function list_cancelled(node, listed, cursor)
  local found, known, rest = {}, {}, cursor

  -- Returns whether there is room for all.
  local function add(id, held)
    if not held or #held <= 65 or held:sub(1, 36) ~= node or known[id] then
      return true
    end
    if #found == CANCELLED_MAX then
      return false
    end
    found[#found + 1], known[id] = id, true
    return true
  end

  for at = 1, #listed, 16 do
    local id = listed:sub(at, at + 15)
    add(id, redis.call('HGET', @running, id))
  end
  for _ = 1, cursor and SCANS or 0 do
    local page, fits = redis.call('HSCAN', @running, rest, 'COUNT', SCAN), true
    for i = 1, #page[2], 2 do
      fits = add(page[2][i], page[2][i + 1]) and fits
    end
    -- Without room for all, a later call reads this page again.
    if fits then
      rest = page[1] ~= '0' and page[1] or nil
    end
    if not fits or not rest then
      break
    end
  end
  local ids = table.concat(found)
  if ids == '' then
    redis.call('HDEL', @conf, 'cancelled:' .. node)
  elseif ids ~= listed then
    redis.call('HSET', @conf, 'cancelled:' .. node, ids)
  end
  if cursor and not rest then
    redis.call('HDEL', @conf, 'cancel_scan:' .. node)
  elseif rest ~= cursor then
    redis.call('HSET', @conf, 'cancel_scan:' .. node, rest)
  end
  return found
end
