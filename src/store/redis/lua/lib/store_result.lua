-- store_result: keeps the result of a job, if there is one.
local function store_result(id, result)
  if result ~= '' then
    redis.call('HSETNX', @progress, id .. 'n', 0)
    redis.call('HSET', @progress, id .. 'r', result)
  end
end
