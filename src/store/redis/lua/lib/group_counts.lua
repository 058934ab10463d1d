-- group_counts: counts dead jobs of the same kind and error in groups.
-- A group is 16 hex digits. Its value is the count (10 digits), when the first and the last job died (16 digits each), kind,
-- tab, error. A dead job has its group after its meta.
-- functions: join_group, leave_group
local GROUPS_MAX = 1000

-- Adds a job to a group, or to the group for the rest if there are too many. Returns the group.
local function join_group(group, died, what)
  local known = redis.call('HGET', @groups, group)
  if not known and redis.call('HLEN', @groups) >= GROUPS_MAX then
    group, what = ('0'):rep(16), '\t…'
    known = redis.call('HGET', @groups, group)
  end
  local count, oldest = 1, died
  if known then
    count, oldest = math.min(tonumber(known:sub(1, 10)) or 0, 2147483646) + 1, known:sub(11, 26)
  end
  redis.call('HSET', @groups, group, string.format('%010d', count) .. oldest .. died .. what)
  return group
end

local function leave_group(meta)
  local group = meta and meta:sub(73, 88) or ''
  local known = group ~= '' and redis.call('HGET', @groups, group)
  if known then
    local left = (tonumber(known:sub(1, 10)) or 0) - 1
    if left > 0 then
      redis.call('HSET', @groups, group, string.format('%010d', left) .. known:sub(11))
    else
      redis.call('HDEL', @groups, group)
    end
  end
end
