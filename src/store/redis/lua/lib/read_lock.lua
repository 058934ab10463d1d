-- read_lock: returns the state of a lock for a caller that asks for one of so many slots.
-- Fields: '' has the last fence; name \0 is the mark, the number of slots, if there are several or an owner waits; name \0 slot
-- is a hold. A hold is ends, fence, since (16 digits each), node, owner (36 each), how long it lasts (16 digits), note.
-- needs: shorten_hold
local SLOTS_MAX = 1000
local function read_lock(name, slots, owner)
  slots = math.min(slots, SLOTS_MAX)
  local field = name .. '\0'
  local fields = { '', field }
  for slot = 1, slots do
    fields[slot + 2] = field .. slot
  end
  local values = redis.call('HMGET', @locks, unpack(fields))
  local width = math.min(tonumber(values[2]) or 1, SLOTS_MAX)
  if width > slots then
    local others = {}
    for slot = slots + 1, width do
      others[slot - slots] = field .. slot
    end
    for i, hold in ipairs(redis.call('HMGET', @locks, unpack(others))) do
      values[slots + 2 + i] = hold
    end
  end
  local lock = { field = field, fence = tonumber(values[1]) or 0, width = width, held = 0 }
  for slot = 1, math.max(slots, width) do
    local hold = values[slot + 2] and shorten_hold(field .. slot, values[slot + 2])
    local ends = hold and tonumber(hold:sub(1, 16)) or 0
    if ends > now then
      lock.held = lock.held + 1
      lock.soonest = math.min(lock.soonest or ends, ends)
      if hold:sub(85, 120) == owner then
        lock.own, lock.hold = slot, hold
      end
    elseif not lock.free_slot then
      lock.free_slot = slot
    end
  end
  return lock
end
