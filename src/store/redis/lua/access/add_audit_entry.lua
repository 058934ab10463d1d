#!lua flags=allow-oom
-- add_audit_entry: adds an entry to the audit log. Beyond the limit of an actor, its oldest entry is deleted; beyond the
-- limit of all, the oldest entry of the actor that has the most.
-- keys: audit audit_actors audit_counts
-- args: now max_of_actor max_entries actor entry
-- Returns { now }
-- include read_time
-- Entries of one actor stand together, oldest first; `\v` follows `\n`.
local function range_of(actor)
  return '[' .. actor .. '\n', '(' .. actor .. '\v'
end
local function update_count(actor)
  local count = redis.call('ZLEXCOUNT', @audit_actors, range_of(actor))
  if count > 0 then
    redis.call('ZADD', @audit_counts, count, actor)
  else
    redis.call('ZREM', @audit_counts, actor)
  end
  return count
end
local function remove_oldest(actor)
  local first, last = range_of(actor)
  local oldest = redis.call('ZRANGE', @audit_actors, first, last, 'BYLEX', 'LIMIT', 0, 1)[1]
  if oldest then
    redis.call('ZREM', @audit_actors, oldest)
    local number = string.match(oldest, '\n(%d+)$')
    for _, record in ipairs(number and redis.call('ZRANGE', @audit, number, number, 'BYSCORE') or {}) do
      redis.call('ZREM', @audit, record)
    end
  end
  update_count(actor)
end
local newest = redis.call('ZRANGE', @audit, -1, -1)[1]
local number = newest and tonumber(string.sub(newest, 1, 16)) + 1 or 1
redis.call('ZADD', @audit, number, string.format('%016.0f%016.0f', number, now) .. $entry)
redis.call('ZADD', @audit_actors, 0, string.format('%s\n%016.0f', $actor, number))
if update_count($actor) > tonumber($max_of_actor) then
  remove_oldest($actor)
elseif redis.call('ZCARD', @audit) > tonumber($max_entries) then
  local first, first_count, second = unpack(redis.call('ZREVRANGE', @audit_counts, 0, 1, 'WITHSCORES'))
  -- If every actor has one entry, the new one stays.
  local is_new = first == $actor and tonumber(first_count) == 1
  remove_oldest(is_new and second or first)
end
return { now }
