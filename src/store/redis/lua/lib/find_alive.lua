-- find_alive: returns which of these nodes have a lease as peers.
local function find_alive(nodes)
  local CHUNK, alive = 1000, {}
  for from = 1, #nodes, CHUNK do
    local ends = redis.call('ZMSCORE', @presence, unpack(nodes, from, math.min(from + CHUNK - 1, #nodes)))
    for i, at in ipairs(ends) do
      alive[nodes[from + i - 1]] = (tonumber(at) or -1) >= now
    end
  end
  return alive
end
