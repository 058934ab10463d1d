#!lua
-- add_token: stores a token, unless its name is taken or there are too many.
-- keys: tokens
-- args: now name lifetime max_tokens secret
--   lifetime: '' is for ever; secret: hash and role
-- Returns { now, 1 if it was stored, else 0 }
-- include read_time
local is_taken = redis.call('HEXISTS', @tokens, $name) == 1
if is_taken or redis.call('HLEN', @tokens) >= tonumber($max_tokens) then
  return { now, 0 }
end
local expires = $lifetime == '' and 0 or now + $lifetime
redis.call('HSET', @tokens, $name, string.format('%016.0f%016.0f', now, expires) .. $secret)
return { now, 1 }
