-- take: pops tickets from the ready lists into a hand, and leaves out those of jobs that have gone elsewhere since.
-- Returns whether it stopped although there may be more: what it pops in one step is bounded.
-- KEYS 1 conf 9 stale 10-13 ready, most urgent first
local function take(hand, most, is_stale)
  local pops = is_stale and 100 or 4
  while #hand.tickets < most and pops > 0 do
    local popped = redis.call('LMPOP', 4, KEYS[10], KEYS[11], KEYS[12], KEYS[13], 'LEFT', 'COUNT', most - #hand.tickets)
    if not popped then
      break
    end
    pops = pops - 1
    local list, got = popped[1], popped[2]
    local flag = list == KEYS[12] and 50 or list == KEYS[11] and 49 or list == KEYS[10] and 48 or 51
    local stale = is_stale and redis.call('SMISMEMBER', KEYS[9], unpack(got))
    for i, ticket in ipairs(got) do
      -- Of two tickets of one name only one is stale.
      if not (stale and stale[i] == 1 and redis.call('SREM', KEYS[9], ticket) == 1) then
        hand.add(ticket, flag)
      end
    end
  end
  if is_stale and redis.call('EXISTS', KEYS[9]) == 0 then
    redis.call('HDEL', KEYS[1], 'stale')
  end
  return pops == 0 and redis.call('EXISTS', KEYS[10], KEYS[11], KEYS[12], KEYS[13]) > 0
end
