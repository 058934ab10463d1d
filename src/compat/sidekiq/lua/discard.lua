#!lua flags=allow-oom
-- discard: entries of a sorted set that nobody can read go to the dead ones, wrapped so that people can.
-- KEYS 1 set 2 dead
-- ARGV 1 now|'' 2... each entry as it is, and as it will be
-- Returns { now }
-- include now, score, bury, sound
sound(2)
for i = 2, #ARGV, 2 do
  if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    bury(KEYS[2], ARGV[i + 1])
  end
end
return { now }
