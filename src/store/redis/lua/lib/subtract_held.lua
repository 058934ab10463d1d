-- subtract_held: lowers the count of jobs that a node holds. Returns how many are left.
-- needs: count_held
local function subtract_held(conf, node, fewer)
  local left = count_held(conf, node) - fewer
  redis.call('HSET', conf, node, left)
  return left
end
