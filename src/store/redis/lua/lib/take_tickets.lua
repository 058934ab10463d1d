-- take_tickets: pops at most `max` tickets from the ready lists, most urgent first, and skips stale ones.
-- Returns five values: the tickets; their ids; each id and its held value; the ids of jobs with a meta; whether it stopped
-- although there may be more, because the number of pops is bounded.
local function take_tickets(node, fence, max, has_stale)
  local tickets, ids, held, with_meta = {}, {}, {}, {}
  -- The held value of a job, without its flag.
  local holder = string.format('%-64s', node .. ' ' .. fence)
  local pops = has_stale and 100 or 4
  while #tickets < max and pops > 0 do
    -- The first pop passes the digits that the caller sent: to make digits of a number costs more.
    local count = #tickets == 0 and $max_jobs or max - #tickets
    local popped = redis.call('LMPOP', '4', @ready, 'LEFT', 'COUNT', count)
    if not popped then
      break
    end
    pops = pops - 1
    local list, got = popped[1], popped[2]
    if has_stale then
      local marks, live = redis.call('SMISMEMBER', @stale, unpack(got)), {}
      for i, ticket in ipairs(got) do
        -- Only one of two equal tickets is stale.
        if not (marks[i] == 1 and redis.call('SREM', @stale, ticket) == 1) then
          live[#live + 1] = ticket
        end
      end
      got = live
    end
    local before, metas_before = #tickets, #with_meta
    local plain = holder .. (list == @ready[3] and '2' or list == @ready[2] and '1' or list == @ready[1] and '0' or '3')
    for i = 1, #got do
      local id, value, at = got[i], plain, 2 * (before + i)
      if #id > 16 then
        id, value = id:sub(1, 16), holder .. id:sub(17, 17)
        with_meta[#with_meta + 1] = id
      end
      held[at - 1], held[at] = id, value
    end
    -- Most claims pop once, and no job has a meta: then tickets and ids are the same table, and nothing is copied.
    if before == 0 and #with_meta == metas_before then
      tickets, ids = got, got
    else
      ids = ids == tickets and { unpack(tickets) } or ids
      for i = 1, #got do
        tickets[before + i], ids[before + i] = got[i], held[2 * (before + i) - 1]
      end
    end
  end
  if has_stale and redis.call('EXISTS', @stale) == 0 then
    redis.call('HDEL', @conf, 'has_stale')
  end
  return tickets, ids, held, with_meta, pops == 0 and redis.call('EXISTS', @ready) > 0
end
