#!lua flags=no-writes
-- counts: returns how many jobs of a queue are in which state.
-- keys: conf running scheduled done dead cancelled stale ready[4] job meta
-- args: now
-- Returns { now, paused, transfer mark|'', scheduled, ready, running, done, dead, cancelled, bytes, capacity in jobs|'', in bytes|'', when the
--   first ready job was due|'' }
-- include read_time, find_oldest_ready
local conf = redis.call('HMGET', @conf, 'format', 'paused', 'transfer_mark', 'bytes', 'capacity_jobs', 'capacity_bytes')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local stale = redis.call('SCARD', @stale)
local ready, oldest = -stale, find_oldest_ready(stale > 0)
for list = 1, 4 do
  ready = ready + redis.call('LLEN', @ready[list])
end
return {
  now,
  conf[2] and 1 or 0,
  conf[3] or '',
  redis.call('ZCARD', @scheduled),
  ready,
  redis.call('HLEN', @running),
  redis.call('ZCARD', @done),
  redis.call('ZCARD', @dead),
  redis.call('ZCARD', @cancelled),
  conf[4] or 0,
  conf[5] or '',
  conf[6] or '',
  oldest and string.format('%.0f', oldest) or '',
}
