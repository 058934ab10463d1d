-- contend: asks for a lock of several slots, or one that others hold or wait for.
-- KEYS 1 locks 2 line 3 places 4 presence
local NEAR = 4
local node, owner, wait = who:sub(1, 36), who:sub(37, 72), ARGV[6] ~= ''

-- Takes a place at the end. Turns grow also if the clock goes back. The mark says that somebody waits.
local function join()
  local last = redis.call('ZRANGE', KEYS[2], '(' .. name .. '\1', '[' .. name .. '\0', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local turn = math.max(now, last and (tonumber(last:sub(-92, -77)) or 0) + 1 or 0)
  local place = field .. text(turn) .. owner .. node .. string.format('%04d', slots)
  redis.call('ZADD', KEYS[2], 0, place)
  redis.call('HSET', KEYS[3], owner .. name, place)
  redis.call('HSETNX', KEYS[1], field, slots)
end

local lock = stand(name, slots, owner)
if lock.own then
  return extend(lock.own, lock.hold)
end
-- Only as many stand in the way as slots are free: the rest of the line does not matter.
local free = slots - lock.held
local line = line_of(name, math.min(LOOK, math.max(free, 0) + NEAR), wait and node)
if #line.dead > 0 and line.more then
  line = line_of(name, LOOK, wait and node)
end
local ahead, mine, unseen = #line.living, nil, line.more
for i, place in ipairs(line.living) do
  if place.owner == owner then
    ahead, mine, unseen = i - 1, place.place, false
    table.remove(line.living, i)
    break
  end
end
if unseen then
  mine = redis.call('HGET', KEYS[3], owner .. name)
  mine = mine and redis.call('ZSCORE', KEYS[2], mine) and mine
  ahead = redis.call('ZLEXCOUNT', KEYS[2], '[' .. field, '(' .. (mine or name .. '\1')) - #line.dead
end
step_out(line.dead)
if ahead < free and not unseen then
  step_out({ mine })
  if slots > lock.width then
    redis.call('HSET', KEYS[1], field, slots)
  end
  -- Several slots are free, and only the first of a long line have heard of it: the line has moved on by one.
  local next_one = mine and line.living[math.min(free - 1, #line.living)]
  if next_one then
    tell(name, next_one)
  end
  redis.call('HSET', KEYS[1], '', fence, field .. lock.gap, ends .. fence .. moment .. who)
  return { now, lock.gap, fence }
end
if wait and not mine then
  join()
end
if wait then
  redis.call('ZADD', KEYS[4], 'GT', now + ARGV[6], node)
end
remind(name, not wait and free > 0 and line.living[1])
return { now, 0, ahead, free <= 0 and lock.soonest or '', unseen and #line.dead > 0 and 1 or 0 }
