#!lua flags=no-writes
-- guests: everybody in the hall; or, if a method is named, those that are there and answer it.
-- KEYS 1 presence 2 guests
-- ARGV 1 now|'' 2 method|''
-- Returns { now, { node, when its lease ends, about|'' if a method is named } }
-- include now
local guests = {}
if ARGV[2] == '' then
  local about = redis.call('HGETALL', KEYS[2])
  for i = 1, #about, 2 do
    guests[#guests + 1] = { about[i], redis.call('ZSCORE', KEYS[1], about[i]) or '0', about[i + 1] }
  end
  return { now, guests }
end
local there = redis.call('ZRANGE', KEYS[1], now, '+inf', 'BYSCORE', 'WITHSCORES')
for i = 1, #there, 2 do
  local about = redis.call('HGET', KEYS[2], there[i]) or ''
  if about:find('\n' .. ARGV[2] .. '\n', 1, true) then
    guests[#guests + 1] = { there[i], there[i + 1], '' }
  end
end
return { now, guests }
