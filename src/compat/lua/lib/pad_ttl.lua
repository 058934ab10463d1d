-- pad_ttl: returns how many milliseconds a key lives that is watched for an EXPIRE by another client: whole seconds and a half.
-- So no EXPIRE of the next half second, which is in whole seconds, gives the key the same end.
local function pad_ttl(ms)
  return ms + (1500 - ms % 1000) % 1000
end
