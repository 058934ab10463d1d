-- push_tick_job: inserts the job of a cron tick, unless its id is known or another job has its unique key.
-- needs: record_fields, increment_field, insert_scheduled, find_known

-- Returns the unfinished job that has a unique key, if there is one.
local function find_unique_holder(unique_key)
  local holder = unique_key ~= '' and redis.call('HGET', @unique, unique_key)
  return holder and redis.call('HEXISTS', @job, holder) == 1 and holder
end

-- Returns the id of the job that is in the way, or '' if the job was inserted.
local function push_tick_job(id, record, due, ticket, unique_key)
  local other = find_known({ id })[1] or find_unique_holder(unique_key)
  if other then
    return other
  end
  redis.call('HSET', @job, id, record)
  if unique_key ~= '' then
    redis.call('HSET', @unique, unique_key, id)
  end
  if due ~= '' and tonumber(due) > now then
    insert_scheduled(due, ticket)
  else
    redis.call('RPUSH', @ready[ticket:byte(17) - 47], id)
  end
  increment_field(@conf, 'bytes', args_bytes(record))
  return ''
end
