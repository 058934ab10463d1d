-- spread: tickets as the schedule has them into their ready lists, by RPUSH to the tail or by LPUSH to the head.
local function spread(command, first_list, tickets)
  local lanes = {}
  for _, ticket in ipairs(tickets) do
    local at = ticket:byte(17) - 48
    if at < 4 then
      ticket = ticket:sub(1, 16)
    else
      at = at - 49
    end
    local lane = lanes[at]
    if not lane then
      lane = {}
      lanes[at] = lane
    end
    lane[#lane + 1] = ticket
  end
  for at, lane in pairs(lanes) do
    redis.call(command, KEYS[first_list + at], unpack(lane))
  end
end
