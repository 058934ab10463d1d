-- split_by_holder: sorts acks by whether the node still holds the job under the value that it sent. The ids of plain acks
-- begin at `first`; then those of kept acks; then how long each of these is kept; then the
-- run of each of these|''; then runs of held values.
-- Returns the ids of plain acks; the ids of kept acks; until when each of these is kept, and its id; how long each is kept;
-- the field and the value of each run;
-- the ids of lost jobs; for each of these its number among all.
local function split_by_holder(first, plain_count, kept_count)
  local kept_at = first + plain_count + kept_count
  local acks_at = kept_at + kept_count
  local runs_at = acks_at + kept_count
  local plain, kept, done, times, acks, lost, lost_at = {}, {}, {}, {}, {}, {}, {}
  if kept_at == first then
    return plain, kept, done, times, acks, lost, lost_at
  end
  local values = redis.call('HMGET', @running, unpack(ARGV, first, kept_at - 1))
  -- Usually all acks are plain, come from one claim, and none is lost.
  local value = kept_count == 0 and runs_at + 1 == #ARGV and ARGV[runs_at + 1]
  for n = 1, value and plain_count or 0 do
    if values[n] ~= value then
      value = false
      break
    end
  end
  if value then
    return { unpack(ARGV, first, kept_at - 1) }, kept, done, times, acks, lost, lost_at
  end
  local n = 0
  for at = runs_at, #ARGV, 2 do
    value = ARGV[at + 1]
    for _ = 1, tonumber(ARGV[at]) do
      n = n + 1
      local id = ARGV[first + n - 1]
      -- The mark of a cancel follows the held value.
      if values[n] ~= value and (values[n] or ''):sub(1, 65) ~= value then
        lost[#lost + 1], lost_at[#lost_at + 1] = id, n
      elseif n <= plain_count then
        plain[#plain + 1] = id
      else
        local time, run = tonumber(ARGV[kept_at + n - plain_count - 1]), ARGV[acks_at + n - plain_count - 1]
        kept[#kept + 1], times[#times + 1] = id, time
        done[#done + 1], done[#done + 2] = now + time, id
        if run ~= '' then
          acks[#acks + 1], acks[#acks + 2] = id, run
        end
      end
    end
  end
  return plain, kept, done, times, acks, lost, lost_at
end
