-- drop_runs: deletes all runs of jobs. `metas` are theirs; a job without a meta has only the run that made it done.
-- needs: record_fields, run_limits
local function drop_runs(ids, metas)
  local FIELDS_MAX, fields = 4000, {}
  for i, id in ipairs(ids) do
    fields[#fields + 1] = id
    local last = metas[i] and read_count(metas[i], 53) or 0
    for n = math.max(1, last - RUNS_MAX + 1), last do
      fields[#fields + 1] = id .. n
    end
    if #fields >= FIELDS_MAX or i == #ids then
      redis.call('HDEL', @runs, unpack(fields))
      fields = {}
    end
  end
end
