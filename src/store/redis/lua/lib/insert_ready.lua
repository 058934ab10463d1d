-- insert_ready: writes the records of a batch, and appends its ready jobs to their lists. Their tickets begin at `tickets_at`.
local function insert_ready(tickets_at)
  local CHUNK, at = 1000, tickets_at
  for from = &jobs, tickets_at - 1, 2 * CHUNK do
    redis.call('HSET', @job, unpack(ARGV, from, math.min(from + 2 * CHUNK, tickets_at) - 1))
  end
  for list = 1, 4 do
    local last = at + $ready_counts[list] - 1
    while at <= last do
      local stop = math.min(at + CHUNK - 1, last)
      redis.call('RPUSH', @ready[list], unpack(ARGV, at, stop))
      at = stop + 1
    end
  end
end
