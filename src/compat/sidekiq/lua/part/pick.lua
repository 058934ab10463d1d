-- pick: takes entries from the tail of a list, up to so many: those of kinds that are known, and those that are none.
-- No more than so many bytes, too: a server cuts a connection that listens when it owes it more than 32 MB.
-- ARGV 8 1: every kind is known 9... the known kinds
local STEP, LOOK, BYTES = 16, 1000, 1048576
local kinds = {}
for i = 9, #ARGV do
  kinds[ARGV[i]] = true
end

-- How the last one began that was ours, as far as its kind: most entries begin like the one before.
local head = false

-- Looks only; what is looked at is never written again. Entries as Ruby writes them need no parser.
local function is_ours(entry)
  if head and entry:sub(1, #head) == head then
    return true
  end
  local began, kind = entry:match('^({"retry":%w+,"queue":"[^"\\]*","class":"([^"\\]*)")')
  if not kind then
    local good, job = pcall(cjson.decode, entry)
    kind = good and type(job) == 'table' and type(job.class) == 'string' and job.class
  end
  local ours = not kind or kinds[kind]
  head = ours and began or head
  return ours
end

-- Returns what was taken, and whether that is all that it may have in bytes.
local function pick(list, most)
  local any, taken, looked, bytes, step = ARGV[8] == '1', {}, 0, 0, nil
  repeat
    step = redis.call('LRANGE', list, -looked - STEP, -looked - 1)
    for i = #step, 1, -1 do
      if #taken == most or bytes > BYTES then
        break
      end
      looked = looked + 1
      if any or is_ours(step[i]) then
        taken[#taken + 1] = step[i]
        bytes = bytes + #step[i]
      end
    end
  until #taken == most or #step < STEP or looked >= LOOK or bytes > BYTES
  if #taken == looked and looked > 0 then
    redis.call('LTRIM', list, 0, -looked - 1)
  else
    for _, entry in ipairs(taken) do
      redis.call('LREM', list, -1, entry)
    end
  end
  return taken, bytes > BYTES
end
