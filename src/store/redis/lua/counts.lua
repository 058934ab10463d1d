#!lua flags=no-writes
-- counts: how many jobs of a queue are in which state.
-- KEYS 1 conf 2 held 3 due 4 done 5 dead 6 stale 7-10 ready
-- ARGV 1 now|''
-- Returns { now, paused, where it is moving to|'', scheduled, ready, running, done, dead, bytes, most jobs|'', most bytes|'' }
-- include now
local ready = -redis.call('SCARD', KEYS[6])
for list = 7, 10 do
  ready = ready + redis.call('LLEN', KEYS[list])
end
return {
  now,
  redis.call('HEXISTS', KEYS[1], 'paused'),
  redis.call('HGET', KEYS[1], 'moving') or '',
  redis.call('ZCARD', KEYS[3]),
  ready,
  redis.call('HLEN', KEYS[2]),
  redis.call('ZCARD', KEYS[4]),
  redis.call('ZCARD', KEYS[5]),
  redis.call('HGET', KEYS[1], 'bytes') or 0,
  redis.call('HGET', KEYS[1], 'limit_jobs') or '',
  redis.call('HGET', KEYS[1], 'limit_bytes') or '',
}
