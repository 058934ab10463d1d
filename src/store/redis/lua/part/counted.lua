-- counted: what a settle counts if nothing is lost, less what was; and what it tells conf.
-- ARGV 7 place (two digits) and how often (10 digits) of everything counted 8 bytes of args that end 9 of each outcome, in
--      their order: its three places ('--': none), and its bytes (8 digits)
local FIRST, CODE = 10, 14
local lost, less, ending = {}, {}, tonumber(ARGV[8])

local function lose(id, n)
  lost[#lost + 1] = id
  local code = ARGV[9]:sub((n - 1) * CODE + 1, n * CODE)
  for at = 1, 5, 2 do
    local place = code:sub(at, at + 1)
    less[place] = (less[place] or 0) + 1
  end
  ending = ending - (tonumber(code:sub(7)) or 0)
end

-- All of it in two steps: one for each number would cost more than what is counted.
local function count_all(history)
  local counted, begins, fields, counts = ARGV[7], minute(), {}, {}
  for at = 1, #counted, 12 do
    local place = counted:sub(at, at + 1)
    local count = tonumber(counted:sub(at + 2, at + 11)) - (less[place] or 0)
    if count > 0 then
      fields[#fields + 1], counts[#counts + 1] = begins .. place, count
    end
  end
  if #fields > 0 and has_history(history) then
    local sums = {}
    for i, before in ipairs(redis.call('HMGET', history, unpack(fields))) do
      -- What somebody has damaged, also to what is no number that one can count with, begins anew.
      local sum = (tonumber(before) or 0) + counts[i]
      sums[2 * i - 1], sums[2 * i] = fields[i], sum > 0 and sum < 1e15 and sum or counts[i]
    end
    redis.call('HSET', history, unpack(sums))
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
