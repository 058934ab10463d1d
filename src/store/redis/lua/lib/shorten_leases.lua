-- shorten_leases: corrects leases that end later than if they had been renewed now: they were renewed while the clock was ahead.
-- `leases` has the ends, `infos` when each node joined and its lease (16 digits each). `usual` is the lease of a node without info.
-- needs: to_digits, parse_int
local function shorten_leases(leases, infos, usual)
  local MAX = 20
  -- The latest first: leases that are longer than the usual one are no reason to miss them.
  local beyond = redis.call('ZRANGE', leases, '+inf', '(' .. to_digits(now + usual), 'BYSCORE', 'REV', 'LIMIT', 0, MAX, 'WITHSCORES')
  for i = 1, #beyond, 2 do
    local other, ends = beyond[i], tonumber(beyond[i + 1])
    local info = redis.call('HGET', infos, other)
    local lease = info and parse_int(info:sub(17, 32), 16) or 0
    lease = lease > 0 and lease or usual
    if ends > now + lease then
      redis.call('ZADD', leases, now + lease, other)
    end
  end
end
