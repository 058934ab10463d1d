-- push_tickets: moves tickets of the schedule into their ready lists, to the tail with RPUSH or to the head with LPUSH. Their
-- terms are dropped. A ticket with a damaged flag becomes one of a normal job without a meta: an error here would leave a
-- half-finished change behind.
local function push_tickets(command, tickets)
  local lists = {}
  for _, ticket in ipairs(tickets) do
    local flag = ticket:byte(17) or 0
    local priority = 2
    if flag >= 97 and flag <= 100 then
      priority = flag - 97
      ticket = ticket:sub(1, 16) .. ticket:match('^[^ ]*', 17)
    else
      priority = flag >= 48 and flag <= 51 and flag - 48 or priority
      ticket = ticket:sub(1, 16)
    end
    local list = lists[priority]
    if not list then
      list = {}
      lists[priority] = list
    end
    list[#list + 1] = ticket
  end
  for priority, list in pairs(lists) do
    redis.call(command, @ready[priority + 1], unpack(list))
  end
end
