-- score: a moment in seconds, moved on by a few microseconds while the set has a member there: whoever touches one member by
-- its score must not touch others.
local function score(set, at)
  local reach = 1
  local text = string.format('%.6f', at / 1000000)
  for _ = 1, 40 do
    if redis.call('ZCOUNT', set, text, text) == 0 then
      break
    end
    reach = math.min(reach * 2, 1000000)
    text = string.format('%.6f', (at + math.random(reach)) / 1000000)
  end
  return text
end
