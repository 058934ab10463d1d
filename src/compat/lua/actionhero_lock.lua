#!lua flags=allow-oom
-- actionhero_lock: takes a lock of ActionHero's for an owner, or a place at the end of duly's own line before it.
-- KEYS 1 locks 2 line 3 places 4 presence 5 ActionHero's lock
-- ARGV 1 now|'' 2 name 3 ttl 4 node, owner (36 each), note 5 lease: stand in line|'' 6 1: it will be watched before it counts
-- Returns { now, 1, fence, when the key ends in ms }, or { now, 0, ahead, how long until a look is worth it|'' if it is free, 1: ask again, the dead were in the way }
-- include now, text, alive, line, standing, watched
local name, who, key = ARGV[2], ARGV[4], KEYS[5]
local node, owner, wait = who:sub(1, 36), who:sub(37, 72), ARGV[5] ~= ''
local ends, ttl_ms = text(now + ARGV[3]), math.ceil(ARGV[3] / 1000)
ttl_ms = ARGV[6] == '1' and watched(ttl_ms) or ttl_ms
local lock = standing(key, name)
if lock.holder == owner and lock.own then
  redis.call('PEXPIRE', key, ttl_ms)
  redis.call('HSET', KEYS[1], lock.field, ends .. lock.hold:sub(17))
  return { now, 1, lock.hold:sub(17, 32), redis.call('PEXPIRETIME', key) }
end

-- Takes a place at the end. Turns grow also if the clock goes back.
local function join()
  local last = redis.call('ZRANGE', KEYS[2], '(' .. name .. '\1', '[' .. name .. '\0', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local turn = math.max(now, last and (tonumber(last:sub(-92, -77)) or 0) + 1 or 0)
  local place = name .. '\0' .. text(turn) .. owner .. node .. '0001'
  redis.call('ZADD', KEYS[2], 0, place)
  redis.call('HSET', KEYS[3], owner .. name, place)
end

local line = line_of(name, LOOK, wait and node)
local ahead, mine, unseen = #line.living, nil, line.more
for i, place in ipairs(line.living) do
  if place.owner == owner then
    ahead, mine, unseen = i - 1, place.place, false
    break
  end
end
if unseen then
  mine = redis.call('HGET', KEYS[3], owner .. name)
  mine = mine and redis.call('ZSCORE', KEYS[2], mine) and mine
  ahead = redis.call('ZLEXCOUNT', KEYS[2], '[' .. name .. '\0', '(' .. (mine or name .. '\1')) - #line.dead
end
step_out(line.dead)
if not lock.holder and ahead == 0 and not unseen then
  step_out({ mine })
  local last = tonumber(redis.call('HGET', KEYS[1], '')) or 0
  local fence = text(math.max(last + 1, now))
  redis.call('SET', key, owner, 'NX', 'PX', ttl_ms)
  redis.call('HSET', KEYS[1], '', fence, lock.field, ends .. fence .. text(now) .. who)
  return { now, 1, fence, redis.call('PEXPIRETIME', key) }
end
if wait and not mine then
  join()
end
if wait then
  redis.call('ZADD', KEYS[4], 'GT', now + ARGV[5], node)
end
return { now, 0, ahead, lock.holder and lock.left or '', unseen and #line.dead > 0 and 1 or 0 }
