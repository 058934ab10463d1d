-- pick_score: returns a time in seconds as a score that no other member of the set has, moved by a few microseconds if needed:
-- clients that address one member by its score must not reach others.
local function pick_score(set, at)
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
