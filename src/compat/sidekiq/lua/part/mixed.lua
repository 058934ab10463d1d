-- mixed: why a list cannot take or give entries of Sidekiq's; nil if it can.
-- Redis in Action names its lists alike and serves them from the other end; its items are arrays that begin with a text.
local function mixed(list)
  local kind = redis.call('TYPE', list).ok
  if kind == 'none' then
    return nil
  elseif kind ~= 'list' then
    return 'type'
  end
  for _, at in ipairs({ 0, -1 }) do
    if redis.call('LINDEX', list, at):match('^%s*%[%s*"') then
      return 'items'
    end
  end
  return nil
end
