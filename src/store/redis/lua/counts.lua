#!lua flags=no-writes
-- counts: how many jobs of a queue are in which state.
-- KEYS 1 conf 2 held 3 due 4 done 5 dead 6 stale 7-10 ready 11 job 12 meta
-- ARGV 1 now|''
-- Returns { now, paused, where it is moving to|'', scheduled, ready, running, done, dead, bytes, most jobs|'', most bytes|'',
--      when the first ready job fell due|'' }
-- include now, oldest
local stale = redis.call('SCARD', KEYS[6])
local ready, oldest = -stale, nil
for list = 7, 10 do
  ready = ready + redis.call('LLEN', KEYS[list])
  local head = head_of(KEYS[list], KEYS[6], stale > 0)
  local due = head and due_of(KEYS[11], KEYS[12], head)
  if due and due < (oldest or math.huge) then
    oldest = due
  end
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
  oldest and string.format('%.0f', oldest) or '',
}
