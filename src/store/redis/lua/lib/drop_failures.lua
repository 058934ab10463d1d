-- drop_failures: deletes all failures of a job.
-- needs: record_fields, failure_limits
local function drop_failures(id, meta)
  local last = read_count(meta, 53)
  local fields = {}
  for n = math.max(1, last - FAILURES_MAX + 1), last do
    fields[#fields + 1] = id .. n
  end
  if #fields > 0 then
    redis.call('HDEL', @failures, unpack(fields))
  end
end
