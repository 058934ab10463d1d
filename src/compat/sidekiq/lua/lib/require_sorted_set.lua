-- require_sorted_set: ends the script before its first write if one of these keys, which other programs write too, is no sorted set.
local function require_sorted_set(...)
  for _, key in ipairs({ ... }) do
    redis.call('ZCARD', key)
  end
end
