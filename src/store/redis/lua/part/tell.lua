-- tell: somebody in line hears that it is its turn. The channel of a node is named after the key of presences.
-- KEYS 4 presence
local function tell(name, place)
  -- Who may not speak here has done all else: a script must not fail half-way.
  redis.pcall('SPUBLISH', KEYS[4] .. ':' .. place.node, 'T' .. place.owner .. name)
end

-- All at the head of a line for whom a slot is free.
local function tell_first(name, living, held)
  for at, place in ipairs(living) do
    if place.slots - held < at then
      return
    end
    tell(name, place)
  end
end

-- Somebody was refused although it is free: the first in line may not have heard of it, or nobody may want its place any more.
local function remind(name, first)
  if first then
    tell(name, first)
  end
end
