-- find_changeable: returns the record of a job that may be changed, or nil and the reply of the script: the job is absent or
-- running, or its queue is moving to another store.
local function find_changeable(id)
  local record = redis.call('HGET', @job, id)
  if not record then
    return nil, { now, 'not_found' }
  end
  if redis.call('HEXISTS', @running, id) == 1 then
    return nil, { now, 'running' }
  end
  if redis.call('HEXISTS', @conf, 'transfer_mark') == 1 then
    return nil, { now, 'moving' }
  end
  return record
end
