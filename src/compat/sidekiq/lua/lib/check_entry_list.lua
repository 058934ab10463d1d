-- check_entry_list: returns why a list cannot hold entries of Sidekiq: 'type' or 'items'; nil if it can.
-- Redis in Action uses the same names for lists and reads them from the other end. Its items are arrays that begin with a text.
local function check_entry_list(list)
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
