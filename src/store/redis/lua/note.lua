#!lua
-- note: keeps what attempts under way say of themselves, each only if the node still holds the job under that fence.
-- KEYS 1 held 2 notes
-- ARGV 1 now|'' then of each: id, held value, progress|'', how many lines, each of them
-- Returns { now, { id of each that was not held } }
-- include now, notes
local lost, at = {}, 2
while at <= #ARGV do
  local id, value, progress, lines = unpack(ARGV, at, at + 3)
  local first = at + 4
  at = first + tonumber(lines)
  if redis.call('HGET', KEYS[1], id) ~= value then
    lost[#lost + 1] = id
  else
    local last = tonumber(redis.call('HGET', KEYS[2], id .. 'n')) or 0
    local said, old = progress ~= '' and { id .. 'p', progress } or {}, {}
    for n = first, at - 1 do
      last = last + 1
      said[#said + 1] = id .. 'l' .. last
      said[#said + 1] = ARGV[n]
      if last > LINES then
        old[#old + 1] = id .. 'l' .. (last - LINES)
      end
    end
    redis.call('HSET', KEYS[2], id .. 'n', last, unpack(said))
    if #old > 0 then
      redis.call('HDEL', KEYS[2], unpack(old))
    end
  end
end
return { now, lost }
