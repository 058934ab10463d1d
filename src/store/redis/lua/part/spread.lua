-- spread: tickets as the schedule has them into their ready lists, by RPUSH to the tail or by LPUSH to the head. The words stay
-- behind.
-- One whose flag somebody has damaged goes where normal jobs without trouble are: a script must not fail half-way.
local function spread(command, first_list, tickets)
  local lanes = {}
  for _, ticket in ipairs(tickets) do
    local flag = ticket:byte(17) or 0
    local at = 2
    if flag >= 97 and flag <= 100 then
      at = flag - 97
      ticket = ticket:sub(1, 16) .. ticket:match('^[^ ]*', 17)
    else
      at = flag >= 48 and flag <= 51 and flag - 48 or at
      ticket = ticket:sub(1, 16)
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
