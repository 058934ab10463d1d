#!lua flags=allow-oom
-- lock: takes a free slot of a lock for an owner, or adds the owner to those that wait for it.
-- keys: locks lock_waiters waiter_index presence
-- args: now name slots ttl holder wait_lease
--   holder: node, owner (36 each), ttl (16 digits), note; wait_lease: '' if the owner does not wait, else the lease of its node
-- Returns { now, slot, fence }, or { now, 0, owners ahead, when the first hold ends|'' if a slot is free, 1 if dead nodes were in the
--   way: send it again }
-- include read_time, to_digits, parse_int
local name, slots, field, time = $name, tonumber($slots), $name .. '\0', to_digits(now)
local one, ends = field .. '1', to_digits(now + $ttl)

-- A lock without a mark has one slot, and no owner waits for it.
local values = redis.call('HMGET', @locks, '', field, one)
local last, hold = tonumber(values[1]) or 0, values[3]
local fence = last < now and time or to_digits(last + 1)
if slots == 1 and not values[2] and (not hold or (tonumber(hold:sub(1, 16)) or 0) <= now) then
  redis.call('HSET', @locks, '', fence, one, ends .. fence .. time .. $holder)
  return { now, 1, fence }
end
-- include shorten_hold
if slots == 1 and not values[2] then
  hold = shorten_hold(one, hold)
  if hold:sub(85, 120) == $holder:sub(37, 72) then
    redis.call('HSET', @locks, one, ends .. hold:sub(17, 120) .. $holder:sub(73, 88) .. hold:sub(137))
    return { now, '1', hold:sub(17, 32) }
  elseif $wait_lease == '' then
    return { now, 0, 0, tonumber(hold:sub(1, 16)), 0 }
  end
end
-- include find_alive, list_waiters, add_waiter, read_lock, notify_waiter, acquire_contended
return acquire_contended(name, slots, ends, fence, fence .. time .. $holder)
