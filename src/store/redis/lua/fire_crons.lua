#!lua
-- fire_crons: pushes the jobs of ticks that are due, and moves each rule on to its next tick in the same step.
-- KEYS 1 job 2 due 3 idle 4-7 ready 8 conf 9 cron 10 ticks 11 held 12 unique 13,14 gone 15 stale 16 history 17 find
-- ARGV 1 now|'' 2 channel 3 how long a tick that is held back waits for the next look
--      4... of each rule: name; revision, tick, next, last (16 digits, 0: none); n|r|t (held back: no, while the job that has
--      its key is running, while it is there); how many jobs, and of each: id, record, due|'', ticket, unique key|''
-- Returns { now, { word (yes, full, held or stale), { id of what is in the way of each job|'' } } of each rule, next tick|'' }
-- include now, text, add, wake, read, words, find, tick, tally, limit
local STEP, NONE = 1000, text(0)
-- include known, tick_job
local answers, at = {}, 4
local moving = redis.call('HEXISTS', KEYS[8], 'moving') == 1

while at <= #ARGV do
  local name, revision, tick, next_tick, last, hold, jobs = unpack(ARGV, at, at + 6)
  local rule, answer = redis.call('HGET', KEYS[9], name), { 'stale', {} }
  local holder = hold ~= 'n' and jobs ~= '0' and holder_of(ARGV[at + 11])
  if rule and not moving and rule:sub(2, 33) == revision .. tick and rule:sub(50, 50) == '0' and tonumber(tick) <= now then
    -- Whoever has read the rule before this must not put it back as it was.
    local changed = rule:sub(1, 1) .. text(tonumber(revision) + 1)
    if holder and (hold == 't' or redis.call('HEXISTS', KEYS[11], holder) == 1) then
      answer = { 'held', { holder } }
      redis.call('HSET', KEYS[9], name, changed .. rule:sub(18, 50) .. '1' .. rule:sub(52))
      redis.call('ZADD', KEYS[10], now + ARGV[3], name)
    else
      -- A queue that is full takes no job of a tick either: the tick goes by.
      local room = fits(at + 7, tonumber(jobs))
      answer[1], last = room and 'yes' or 'full', last == NONE and rule:sub(34, 49) or last
      for n = 1, room and tonumber(jobs) or 0 do
        answer[2][n] = put(unpack(ARGV, at + 2 + 5 * n, at + 6 + 5 * n))
      end
      redis.call('HSET', KEYS[9], name, changed .. next_tick .. last .. '00' .. rule:sub(52))
      if next_tick == NONE then
        redis.call('ZREM', KEYS[10], name)
      else
        redis.call('ZADD', KEYS[10], next_tick, name)
      end
    end
  end
  answers[#answers + 1] = answer
  at = at + 7 + 5 * tonumber(jobs)
end
if put_jobs > 0 then
  happened(KEYS[16], '00', put_jobs)
  wake(KEYS[3], ARGV[2])
end
return { now, answers, set_tick(KEYS[8], KEYS[10]) }
