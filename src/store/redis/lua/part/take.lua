-- take: pops tickets from the ready lists, and leaves out those of jobs that have gone elsewhere since.
-- Of all that are taken: `tickets`, `ids`, `held` (each id with its held value), `worried` (ids of those with a meta).
-- KEYS 1 conf 9 stale 10-13 ready, most urgent first
-- ARGV 4 most to take
local tickets, ids, held, worried = {}, {}, {}, {}
-- What a job is held under, but for its flag.
local whose = string.format('%-64s', node .. ' ' .. fence)

local function live_of(got)
  local stale, live = redis.call('SMISMEMBER', KEYS[9], unpack(got)), {}
  for i, ticket in ipairs(got) do
    -- Of two tickets of one name only one is stale.
    if not (stale[i] == 1 and redis.call('SREM', KEYS[9], ticket) == 1) then
      live[#live + 1] = ticket
    end
  end
  return live
end

-- Notes what was popped from one list; a job without trouble is held under its flag. Mostly that is all, and nothing is copied.
local function grasp(got, flag)
  local before, trouble, plain = #tickets, #worried, whose .. flag
  for i = 1, #got do
    local id, value, at = got[i], plain, 2 * (before + i)
    if #id > 16 then
      id, value = id:sub(1, 16), whose .. id:sub(17, 17)
      worried[#worried + 1] = id
    end
    held[at - 1], held[at] = id, value
  end
  if before == 0 and #worried == trouble then
    tickets, ids = got, got
    return
  end
  ids = ids == tickets and { unpack(tickets) } or ids
  for i = 1, #got do
    tickets[before + i], ids[before + i] = got[i], held[2 * (before + i) - 1]
  end
end

-- Returns whether it stopped although there may be more: what it pops in one step is bounded.
local function take(most, is_stale)
  local pops = is_stale and 100 or 4
  while #tickets < most and pops > 0 do
    -- The first time as many as the claim says, in its own digits: to make digits of a number costs more than to pass them on.
    local count = #tickets == 0 and ARGV[4] or most - #tickets
    local popped = redis.call('LMPOP', '4', KEYS[10], KEYS[11], KEYS[12], KEYS[13], 'LEFT', 'COUNT', count)
    if not popped then
      break
    end
    pops = pops - 1
    local list, got = popped[1], popped[2]
    local flag = list == KEYS[12] and '2' or list == KEYS[11] and '1' or list == KEYS[10] and '0' or '3'
    grasp(is_stale and live_of(got) or got, flag)
  end
  if is_stale and redis.call('EXISTS', KEYS[9]) == 0 then
    redis.call('HDEL', KEYS[1], 'stale')
  end
  return pops == 0 and redis.call('EXISTS', KEYS[10], KEYS[11], KEYS[12], KEYS[13]) > 0
end
