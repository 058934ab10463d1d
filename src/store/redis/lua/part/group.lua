-- Groups of dead jobs: 16 hex digits to how many there are (10 digits), when the first and the last of them died (16 digits
-- each), kind, tab, error. A dead job has its group behind its meta.
local GROUPS = 1000

local function join_group(groups, group, died, what)
  local known = redis.call('HGET', groups, group)
  if not known and redis.call('HLEN', groups) >= GROUPS then
    group, what = ('0'):rep(16), '\t…'
    known = redis.call('HGET', groups, group)
  end
  local count, oldest = 1, died
  if known then
    count, oldest = math.min(tonumber(known:sub(1, 10)) or 0, 2147483646) + 1, known:sub(11, 26)
  end
  redis.call('HSET', groups, group, string.format('%010d', count) .. oldest .. died .. what)
  return group
end

local function leave_group(groups, meta)
  local group = meta and meta:sub(73, 88) or ''
  local known = group ~= '' and redis.call('HGET', groups, group)
  if known then
    local left = (tonumber(known:sub(1, 10)) or 0) - 1
    if left > 0 then
      redis.call('HSET', groups, group, string.format('%010d', left) .. known:sub(11))
    else
      redis.call('HDEL', groups, group)
    end
  end
end
