-- watched: how many milliseconds a key is given that is watched for an EXPIRE of somebody else's: a whole number of seconds and
-- a half, so that no EXPIRE of the next half second, which is in whole seconds, gives it the same end.
local function watched(ms)
  return ms + (1500 - ms % 1000) % 1000
end
