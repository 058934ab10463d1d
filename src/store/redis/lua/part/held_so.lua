-- held_so: which acks are of jobs that the node still holds so: `acked` (the plain ones), `finished` (the kept ones), `done` (until
-- when each of these is kept, and its id). All others are lost.
-- `values` is what each is held under; `kept_at` and `runs_at` are where in ARGV the times and the runs begin.
local acked, finished, done = {}, {}, {}

-- Mostly all are plain, of one claim, and none is lost.
local function all_are_held()
  local value = kept == 0 and runs_at + 1 == #ARGV and ARGV[runs_at + 1]
  for n = 1, value and plain or 0 do
    if values[n] ~= value then
      return false
    end
  end
  return value
end

local function sort_out()
  local n = 0
  for at = runs_at, #ARGV, 2 do
    local value = ARGV[at + 1]
    for _ = 1, tonumber(ARGV[at]) do
      n = n + 1
      local id = ARGV[FIRST + n - 1]
      if values[n] ~= value then
        lose(id, n)
      elseif n <= plain then
        acked[#acked + 1] = id
      else
        local time = tonumber(ARGV[kept_at + n - plain - 1])
        finished[#finished + 1] = id
        done[#done + 1], done[#done + 2] = now + time, id
        keeps(time)
      end
    end
  end
end
