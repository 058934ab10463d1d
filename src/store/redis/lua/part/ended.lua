-- tell_ended: whoever waits for jobs of this queue hears which have ended, in one message: their ids, one behind the other.
-- `waited` is until when somebody does, as conf says: false if nobody ever did.
local function tell_ended(channel, waited, ...)
  if not waited or (tonumber(waited) or 0) < now then
    return
  end
  local ids = {}
  for _, group in ipairs({ ... }) do
    ids[#ids + 1] = table.concat(group)
  end
  ids = table.concat(ids)
  if ids ~= '' then
    -- Who may not speak here has done all else: a script must not fail half-way.
    redis.pcall('SPUBLISH', channel .. 'ended', ids)
  end
end
