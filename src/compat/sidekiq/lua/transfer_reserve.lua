#!lua flags=allow-oom
-- transfer_reserve: takes entries of one queue out of reach of Ruby before a transfer copies them, each only if it is still there.
-- keys: conf source reserved
-- args: now mover from entries...
--   from: list, schedule, retry, dead, done, or reserved: takes none, but returns those it has already; entries: for each entry: field, id, entry
-- Returns { now, 'marked' | 'open', { for each entry that is reserved now: its number from 1 } }
-- include read_time, check_format
local mark, taken, from = redis.call('HGET', @conf, 'transfer_mark') or '', {}, $from
if mark:sub(1, 36) ~= $mover then
  return { now, 'open', {} }
end
-- Returns the score of an entry that was there; false if it was not.
local function remove(id, entry)
  if from == 'reserved' then
    return false
  end
  if from == 'list' then
    return redis.call('LREM', @source, -1, entry) > 0 and '0'
  end
  local member = from == 'done' and id or entry
  local score = redis.call('ZSCORE', @source, member)
  return score and redis.call('ZREM', @source, member) > 0 and score
end
local number = 0
for i = &entries, #ARGV, 3 do
  number = number + 1
  -- A call whose reply was lost has reserved it already.
  local is_reserved = redis.call('HEXISTS', @reserved, ARGV[i]) == 1
  local score = not is_reserved and remove(ARGV[i + 1], ARGV[i + 2])
  if score then
    local head = from .. ' ' .. score .. string.format(' %06d ', number)
    redis.call('HSET', @reserved, ARGV[i], head .. ARGV[i + 2])
  end
  taken[#taken + 1] = (is_reserved or score) and number or nil
end
return { now, 'marked', taken }
