#!lua flags=allow-oom
-- actionhero_turns: how the locks of ActionHero's stand that a node waits for.
-- KEYS 1 locks 2 line 3 places 4 presence 5... ActionHero's locks
-- ARGV 1 now|'' 2 node 3... names
-- Returns { now, { lock, who of this node is first|'', how long until a look is worth it, 0 if it is free } of those with a line }
-- include now, alive, line, tell, standing
local NEAR = 20
local node, turns = ARGV[2], {}
for n = 3, #ARGV do
  local name = ARGV[n]
  local line = line_of(name, NEAR)
  step_out(line.dead)
  local first = line.living[1]
  if first then
    local lock = standing(KEYS[n + 2], name)
    turns[#turns + 1] = { name, first.node == node and first.owner or '', lock.left }
    -- It has not come although it could: it may not have heard.
    if not lock.holder and first.node ~= node then
      tell(name, first)
    end
  end
end
return { now, turns }
