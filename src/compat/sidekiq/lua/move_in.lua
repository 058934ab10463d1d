#!lua
-- move_in: puts jobs into one queue as they are, and changes the note of their move in the same step: all or nothing.
-- KEYS 1 conf 2 queues 3 queue 4 schedule 5 retry 6 dead 7 job 8 done 9,10 gone 11 idle
-- ARGV 1 now|'' 2 channel 3 field of the note 4 the note as it was|'' 5 as it will be|'' 6 fence 7 queue 8 age of remembered ids
--      9... of each: id, where (3 to 6, or 8), moment, entry
-- Returns { now, 'yes' | 'lost' | why not, { id of each that is known }, the note as it was found|'' }
-- include now, wake, gone, score, mixed, sound
local conf = redis.call('HMGET', KEYS[1], ARGV[3], 'fence')
local note, fence = conf[1] or '', tonumber(conf[2]) or 0
local function set_note()
  if ARGV[5] == '' then
    redis.call('HDEL', KEYS[1], ARGV[3])
  else
    redis.call('HSET', KEYS[1], ARGV[3], ARGV[5])
  end
end
if note == ARGV[5] then
  set_note()
  return { now, 'yes', {}, note }
elseif note ~= ARGV[4] then
  return { now, 'lost', {}, note }
end
local why = mixed(KEYS[3])
if why then
  return { now, why, {}, note }
end
sound(4, 5, 6)
redis.call('SCARD', KEYS[2])
local known, half = {}, gone(KEYS[1], { KEYS[9], KEYS[10] }, tonumber(ARGV[8]))
for at = 9, #ARGV, 4 do
  local id, where, moment, entry = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  if redis.call('SISMEMBER', KEYS[9], id) + redis.call('SISMEMBER', KEYS[10], id) > 0 then
    known[#known + 1] = id
  else
    redis.call('SADD', half, id)
    if where == 3 then
      redis.call('LPUSH', KEYS[3], entry)
    elseif where == 8 then
      redis.call('HSET', KEYS[7], id, entry)
      redis.call('ZADD', KEYS[8], moment, id)
    else
      redis.call('ZADD', KEYS[where], score(KEYS[where], moment), entry)
    end
  end
end
set_note()
if fence < tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[1], 'fence', ARGV[6])
end
if #ARGV > 8 then
  redis.call('SADD', KEYS[2], ARGV[7])
  wake(KEYS[11], ARGV[2])
end
return { now, 'yes', known, note }
