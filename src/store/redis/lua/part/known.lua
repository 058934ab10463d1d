-- known: those of some ids whose job is there, or is gone and remembered.
-- KEYS 1 job 13,14 gone 15 stale
local function known_of(ids)
  local known = {}
  for at = 1, #ids, STEP do
    local some, remembered = { unpack(ids, at, math.min(at + STEP - 1, #ids)) }, {}
    -- An id whose old ticket is still in a list is remembered with it: a new ticket would be taken for the old one.
    for key = 13, 15 do
      remembered[key] = redis.call('SMISMEMBER', KEYS[key], unpack(some))
    end
    for n, id in ipairs(some) do
      local times = remembered[13][n] + remembered[14][n] + remembered[15][n]
      if times + redis.call('HEXISTS', KEYS[1], id) > 0 then
        known[#known + 1] = id
      end
    end
  end
  return known
end
