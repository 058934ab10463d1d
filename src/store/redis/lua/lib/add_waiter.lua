-- add_waiter: adds a waiter behind all others of this lock. Turns also grow if the clock goes back.
-- needs: to_digits
local function add_waiter(name, owner, node, slots)
  local last = redis.call('ZRANGE', @lock_waiters, '(' .. name .. '\1', '[' .. name .. '\0', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local turn = math.max(now, last and (tonumber(last:sub(-92, -77)) or 0) + 1 or 0)
  local member = name .. '\0' .. to_digits(turn) .. owner .. node .. string.format('%04d', slots)
  redis.call('ZADD', @lock_waiters, 0, member)
  redis.call('HSET', @waiter_index, owner .. name, member)
end
