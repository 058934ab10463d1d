-- alive: of these nodes, which are in the hall.
-- KEYS 4 presence
local function alive(nodes)
  local STEP, is = 1000, {}
  for from = 1, #nodes, STEP do
    local ends = redis.call('ZMSCORE', KEYS[4], unpack(nodes, from, math.min(from + STEP - 1, #nodes)))
    for i, at in ipairs(ends) do
      is[nodes[from + i - 1]] = (tonumber(at) or -1) >= now
    end
  end
  return is
end
