-- count_crash: adds one crash to the failures of a job, and to its meta unless the job is a suspect that did not run alone.
-- Returns the number in its tickets.
-- needs: to_digits, record_fields, add_failure
local SUSPECT_CRASHES = 2
local function count_crash(id, node, reason, is_alone)
  local meta = redis.call('HGET', @meta, id)
  local due, attempts, crashes, failures, ticket_number = to_digits(0), 0, 0, 0, 0
  if meta then
    due, attempts, crashes = meta:match('^' .. ('%d'):rep(16)) or due, read_count(meta, 33), read_count(meta, 43)
    failures, ticket_number = read_count(meta, 53), read_count(meta, 63)
  end
  failures = add_one(failures)
  crashes = (is_alone or crashes < SUSPECT_CRASHES) and add_one(crashes) or crashes
  local counts = string.format('%010d%010d%010d%010d', attempts, crashes, failures, ticket_number)
  redis.call('HSET', @meta, id, due .. to_digits(now) .. counts)
  add_failure(id, failures, to_digits(now) .. string.format('%010d', add_one(attempts)) .. node .. reason)
  return ticket_number
end
