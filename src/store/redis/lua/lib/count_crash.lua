-- count_crash: adds one crash to the runs of a job, and to its meta unless the job is a suspect that did not run alone.
-- Returns the number in its tickets.
-- needs: to_digits, record_fields, add_run
local SUSPECT_CRASHES = 2
local function count_crash(id, node, reason, is_alone)
  local meta = redis.call('HGET', @meta, id)
  local due, attempts, crashes, runs, ticket_number = to_digits(0), 0, 0, 0, 0
  if meta then
    due, attempts, crashes = meta:match('^' .. ('%d'):rep(16)) or due, read_count(meta, 33), read_count(meta, 43)
    runs, ticket_number = read_count(meta, 53), read_count(meta, 63)
  end
  runs = add_one(runs)
  crashes = (is_alone or crashes < SUSPECT_CRASHES) and add_one(crashes) or crashes
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes, runs, ticket_number)
  redis.call('HSET', @meta, id, due .. to_digits(now) .. counts)
  add_run(id, runs, to_digits(now) .. string.format('%010d%s%s%05d%s', add_one(attempts), node, 'c' .. ('0'):rep(32), #reason, reason))
  return ticket_number
end
