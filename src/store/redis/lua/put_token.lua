#!lua
-- put_token: keeps a token, unless its name is taken or there are enough.
-- KEYS 1 tokens
-- ARGV 1 now|'' 2 name 3 how long it lasts|'' 4 most tokens 5 hash and role
-- Returns { now, 1 if it is kept, else 0 }
-- include now
local taken = redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if taken or redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return { now, 0 }
end
local expires = ARGV[3] == '' and 0 or now + ARGV[3]
redis.call('HSET', KEYS[1], ARGV[2], string.format('%016.0f%016.0f', now, expires) .. ARGV[5])
return { now, 1 }
