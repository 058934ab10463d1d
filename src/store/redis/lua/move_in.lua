#!lua
-- move_in: puts jobs into one queue as they are, and changes the note of their move in the same step: all or nothing.
-- KEYS 1 job 2 due 3 idle 4-7 ready 8 meta 9 errors 10 done 11 dead 12 unique 13,14 gone 15 conf 16 stale 17 notes 18 groups 19 find
-- ARGV 1 now|'' 2 channel 3 field of the note 4 the note as it was|'' 5 as it will be|'' 6 fence 7... each job, for arrive
-- Returns { now, 'yes' | 'taken' | 'lost', { id of each that is known, or whose key is taken }, the note as it was found|'' }
-- include now, add, text, wake, read, whole, kept, group, words, find, arrive
local conf = redis.call('HMGET', KEYS[15], ARGV[3], 'fence', 'stale')
local note, fence, is_stale = conf[1] or '', tonumber(conf[2]) or 0, conf[3]
local function set_note()
  if ARGV[5] == '' then
    redis.call('HDEL', KEYS[15], ARGV[3])
  else
    redis.call('HSET', KEYS[15], ARGV[3], ARGV[5])
  end
end
if note == ARGV[5] then
  -- Said before. Written again, so that whoever waits for replicas waits for what was said.
  set_note()
  return { now, 'yes', {}, note }
end
if note ~= ARGV[4] then
  return { now, 'lost', {}, note }
end
local known, taken, new, at = {}, {}, {}, 7
while at <= #ARGV do
  local id, key = ARGV[at], ARGV[at + 6]
  local holder = key ~= '' and redis.call('HGET', KEYS[12], key)
  local seen = redis.call('HEXISTS', KEYS[1], id) + redis.call('SISMEMBER', KEYS[13], id)
  if seen + redis.call('SISMEMBER', KEYS[14], id) > 0 then
    known[#known + 1] = id
  elseif holder and redis.call('HEXISTS', KEYS[1], holder) == 1 then
    taken[#taken + 1] = id
  else
    new[#new + 1] = at
  end
  at = at + 12 + tonumber(ARGV[at + 7]) + tonumber(ARGV[at + 11])
end
if #taken > 0 then
  return { now, 'taken', taken, note }
end
for _, place in ipairs(new) do
  arrive(place, is_stale)
end
set_note()
tell_kept(KEYS[15])
if fence < tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[15], 'fence', ARGV[6])
end
if #new > 0 then
  wake(KEYS[3], ARGV[2])
end
return { now, 'yes', known, note }
