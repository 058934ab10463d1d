-- index_members: adds members to the job index, or removes them.
-- functions: add_to_index, drop_from_index
local CHUNK = 500

local function add_to_index(members)
  for from = 1, #members, CHUNK do
    local pairs_of = {}
    for at = from, math.min(from + CHUNK - 1, #members) do
      pairs_of[#pairs_of + 1] = '0'
      pairs_of[#pairs_of + 1] = members[at]
    end
    redis.call('ZADD', @job_index, unpack(pairs_of))
  end
end

local function drop_from_index(members)
  for from = 1, #members, CHUNK do
    redis.call('ZREM', @job_index, unpack(members, from, math.min(from + CHUNK - 1, #members)))
  end
end
