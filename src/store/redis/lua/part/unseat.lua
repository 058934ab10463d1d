-- Takes a job out of the schedule. Returns whether it was there.
local function unschedule(due, ticket)
  local at = redis.call('ZSCORE', due, ticket)
  if not at then
    return false
  end
  local members = {}
  words_due(members, ticket, at)
  redis.call('ZREM', due, ticket)
  drop_words(members)
  return true
end

-- A ticket stays in its ready list, marked as stale, unless it is among the last: of jobs that are replaced again and again while
-- nobody claims there would be ever more. An id that was forgotten and came again may have left one of the same name there
-- before: one mark stands for one ticket, so the other goes.
local LAST = 100
local function mark_stale(stale, conf, list, ticket)
  if redis.call('SISMEMBER', stale, ticket) == 0 and redis.call('LPOS', list, ticket, 'RANK', -1, 'MAXLEN', LAST) then
    redis.call('LREM', list, -1, ticket)
    return
  end
  if redis.call('SADD', stale, ticket) == 0 then
    redis.call('LREM', list, 1, ticket)
  end
  redis.call('HSET', conf, 'stale', 1)
end

-- Takes a job that waits out of its place: the schedule, or one of the ready lists, of which this is the number of the first.
local function unseat(due, stale, conf, first_list, id, record, meta)
  local ready_ticket, due_ticket = tickets_of(id, record, meta)
  if not unschedule(due, due_ticket) then
    mark_stale(stale, conf, KEYS[first_list + lane_of(record)], ready_ticket)
  end
end
