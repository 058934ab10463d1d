-- shorten_item_leases: leases that end later than if they began now were written while the clock was ahead: they begin now.
-- `usual` is the length of most leases.
-- needs: to_digits, item_leases
local function shorten_item_leases(usual)
  local MAX = 20
  -- The latest first: leases that are longer than the usual one are no reason to miss them.
  local beyond = redis.call('ZRANGE', @lease_ends, '+inf', '(' .. to_digits(now + usual), 'BYSCORE', 'REV', 'LIMIT', 0, MAX)
  for _, id in ipairs(beyond) do
    local lease = read_lease(id)
    if lease and lease.ends > now + lease.length and is_untouched(id, lease) then
      write_lease(id, lease.fence, lease.length, lease.first)
    end
  end
end
