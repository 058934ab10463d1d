-- check_item_list: returns why a list cannot hold items of Redis in Action: 'type' or 'sidekiq'; nil if it can.
-- Sidekiq uses the same names for lists, reads them from the other end, and loses whatever is not an object.
local function check_item_list(list, sidekiq_queues, name)
  local kind = redis.call('TYPE', list).ok
  if kind ~= 'list' and kind ~= 'none' then
    return 'type'
  end
  local known = redis.pcall('SISMEMBER', sidekiq_queues, name)
  if known == 1 then
    return 'sidekiq'
  end
  for _, at in ipairs({ 0, -1 }) do
    local item = redis.call('LINDEX', list, at)
    if item and item:match('^%s*{') then
      return 'sidekiq'
    end
  end
  return nil
end
