-- sound: ends the script before its first write if one of these keys, by number, is no sorted set. They are not ours alone.
local function sound(...)
  for _, at in ipairs({ ... }) do
    redis.call('ZCARD', KEYS[at])
  end
end
