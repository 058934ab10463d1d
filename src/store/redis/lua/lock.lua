#!lua flags=allow-oom
-- lock: takes a free slot of a lock for an owner, or a place at the end of the line before it.
-- KEYS 1 locks 2 line 3 places 4 presence
-- ARGV 1 now|'' 2 name 3 slots 4 ttl 5 node, owner (36 each), note 6 lease: stand in line|''
-- Returns { now, slot, fence }, or { now, 0, ahead, when the first hold ends|'' if one is free, 1: ask again, the dead were in the way }
-- include now, text
local name, slots, who, field, moment = ARGV[2], tonumber(ARGV[3]), ARGV[5], ARGV[2] .. '\0', text(now)
local one, ends = field .. '1', text(now + ARGV[4])

-- A lock without a mark has one slot, and nobody waits for it: that is all there is to know.
local values = redis.call('HMGET', KEYS[1], '', field, one)
local last, hold = tonumber(values[1]) or 0, values[3]
local fence = last < now and moment or text(last + 1)
if slots == 1 and not values[2] and (not hold or (tonumber(hold:sub(1, 16)) or 0) <= now) then
  redis.call('HSET', KEYS[1], '', fence, one, ends .. fence .. moment .. who)
  return { now, 1, fence }
end

local function extend(slot, hold)
  redis.call('HSET', KEYS[1], field .. slot, ends .. hold:sub(17))
  return { now, slot, hold:sub(17, 32) }
end

if slots == 1 and not values[2] then
  if hold:sub(85, 120) == who:sub(37, 72) then
    return extend('1', hold)
  elseif ARGV[6] == '' then
    return { now, 0, 0, tonumber(hold:sub(1, 16)), 0 }
  end
end
-- include alive, line, stand, tell, contend
