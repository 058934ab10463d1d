-- fingerprint_queue: returns a digest. If two calls return the same, no counted job was added, removed or moved between them.
local function fingerprint_queue()
  local conf, parts = redis.call('HGETALL', @conf), {}
  for at = 1, #conf, 2 do
    parts[#parts + 1] = conf[at] .. '\0' .. conf[at + 1]
  end
  table.sort(parts)
  for _, count in ipairs({
    redis.call('HLEN', @job),
    redis.call('HLEN', @running),
    redis.call('ZCARD', @scheduled),
    redis.call('ZCARD', @done),
    redis.call('ZCARD', @dead),
    redis.call('ZCARD', @cancelled),
    redis.call('SCARD', @removed[1]),
    redis.call('SCARD', @removed[2]),
    redis.call('HLEN', @groups),
  }) do
    parts[#parts + 1] = tostring(count)
  end
  return redis.sha1hex(table.concat(parts, '\n'))
end
