-- erase_job: deletes the record, meta and runs of a job that has left its place, and its unique key if the job has it.
-- needs: drop_runs
local function erase_job(id, meta, unique_key)
  redis.call('HDEL', @job, id)
  drop_runs({ id }, { meta })
  if meta then
    redis.call('HDEL', @meta, id)
  end
  if unique_key ~= '' and redis.call('HGET', @unique, unique_key) == id then
    redis.call('HDEL', @unique, unique_key)
  end
end
