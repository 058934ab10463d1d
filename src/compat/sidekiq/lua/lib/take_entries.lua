-- take_entries: takes entries from the tail of a list, up to a number: those of known kinds, and those that are no jobs.
-- Also up to a number of bytes: a server closes a connection with a subscription if it owes it more than 32 MB.
-- needs: match_kind
local CHUNK, SCAN_MAX, BYTES = 16, 1000, 1048576
local kinds = {}
for i = &kinds, #ARGV do
  kinds[ARGV[i]] = true
end

-- How the last taken entry began, up to its kind: most entries begin like the one before.
local head = false

-- Only reads; the entry is never written again.
local function has_known_kind(entry)
  if head and entry:sub(1, #head) == head then
    return true
  end
  local began, kind = match_kind(entry)
  if not kind then
    local good, job = pcall(cjson.decode, entry)
    kind = good and type(job) == 'table' and type(job.class) == 'string' and job.class
    kind = kind and WRAPPERS[kind] and type(job.wrapped) == 'string' and job.wrapped or kind
  end
  local is_known = not kind or kinds[kind]
  head = is_known and began or head
  return is_known
end

-- Returns the entries, and whether the number of bytes was reached.
local function take_entries(max)
  local any, taken, scanned, bytes, chunk = $any_kind == '1', {}, 0, 0, nil
  repeat
    chunk = redis.call('LRANGE', @list, -scanned - CHUNK, -scanned - 1)
    for i = #chunk, 1, -1 do
      if #taken == max or bytes > BYTES then
        break
      end
      scanned = scanned + 1
      if any or has_known_kind(chunk[i]) then
        taken[#taken + 1] = chunk[i]
        bytes = bytes + #chunk[i]
      end
    end
  until #taken == max or #chunk < CHUNK or scanned >= SCAN_MAX or bytes > BYTES
  if #taken == scanned and scanned > 0 then
    redis.call('LTRIM', @list, 0, -scanned - 1)
  else
    for _, entry in ipairs(taken) do
      redis.call('LREM', @list, -1, entry)
    end
  end
  return taken, bytes > BYTES
end
