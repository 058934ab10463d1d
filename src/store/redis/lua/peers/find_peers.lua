#!lua flags=no-writes
-- find_peers: returns all peers; or, if a method is named, those with a lease that have it.
-- keys: presence peers
-- args: now method
-- Returns { now, { node, when its lease ends, info|'' if a method is named } }
-- include read_time
local peers = {}
if $method == '' then
  local all = redis.call('HGETALL', @peers)
  for i = 1, #all, 2 do
    peers[#peers + 1] = { all[i], redis.call('ZSCORE', @presence, all[i]) or '0', all[i + 1] }
  end
  return { now, peers }
end
local alive = redis.call('ZRANGE', @presence, now, '+inf', 'BYSCORE', 'WITHSCORES')
for i = 1, #alive, 2 do
  local info = redis.call('HGET', @peers, alive[i]) or ''
  if info:find('\n' .. $method .. '\n', 1, true) then
    peers[#peers + 1] = { alive[i], alive[i + 1], '' }
  end
end
return { now, peers }
