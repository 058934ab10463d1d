-- return_surplus: puts popped tickets back at the head of their lists if their records do not fit into `max_bytes`, all but the
-- first ticket, and removes them from the values of take_tickets. Returns whether it found any.
local function return_surplus(tickets, ids, held, with_meta, max_bytes)
  local bytes, count, kept = 0, #ids, 1
  for i, id in ipairs(ids) do
    bytes = bytes + redis.call('HSTRLEN', @job, id)
    if bytes > max_bytes and i > 1 then
      break
    end
    kept = i
  end
  for i = count, kept + 1, -1 do
    -- The flag at the end of the held value: a digit is the priority, a letter that of a job with a meta.
    local flag = held[2 * i]:byte(-1)
    local priority = flag >= 97 and flag - 97 or flag - 48
    -- A damaged ticket may have any flag.
    priority = math.min(math.max(priority, 0), 3)
    redis.call('LPUSH', @ready[priority + 1], tickets[i])
    if with_meta[#with_meta] == ids[i] then
      with_meta[#with_meta] = nil
    end
    -- Tickets and ids may be the same table.
    tickets[i], ids[i], held[2 * i - 1], held[2 * i] = nil, nil, nil, nil
  end
  return kept < count
end
