-- counted: what a settle counts if nothing is lost, less what was; and what it tells conf.
-- ARGV 7 bytes of args that end 8 of each outcome, in their order: its three places ('--': none), and its bytes (8 digits)
--      9 how many places are counted; then each of them (two digits) and how often
local COUNTED, CODE = 10, 14
local FIRST = COUNTED + 2 * ARGV[9]
local lost, less, ending = {}, nil, tonumber(ARGV[7])

local function lose(id, n)
  lost[#lost + 1] = id
  less = less or {}
  local code = ARGV[8]:sub((n - 1) * CODE + 1, n * CODE)
  for at = 1, 5, 2 do
    local place = code:sub(at, at + 1)
    less[place] = (less[place] or 0) + 1
  end
  ending = ending - (tonumber(code:sub(7)) or 0)
end

-- Mostly nothing is lost, and each number goes in as it came.
local function count_all(history)
  local begins = has_history(history) and FIRST > COUNTED and minute()
  for at = COUNTED, begins and FIRST - 1 or 0, 2 do
    local place, times = ARGV[at], ARGV[at + 1]
    times = less and less[place] and times - less[place] or times
    if times ~= 0 then
      add(history, begins .. place, times)
    end
  end
end

-- The node holds so many fewer, and fewer bytes have not ended. `told` is what conf says: how many the node holds, how long done
-- jobs are kept, until when somebody waits for jobs, how many bytes have not ended.
-- ARGV 3 node
local function let_go(conf, fewer, told)
  local kept, bytes = widened(told[2]), whole(told[4], 15)
  local fields = { ARGV[3], whole(told[1], 15) - fewer, 'bytes', math.max(0, bytes - ending) }
  if kept then
    fields[5], fields[6] = 'kept', kept
  end
  redis.call('HSET', conf, unpack(fields))
end
