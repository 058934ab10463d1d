-- count_held: returns how many jobs a node holds, as conf says.
-- needs: parse_int
local function count_held(conf, node)
  return parse_int(redis.call('HGET', conf, node), 15)
end
