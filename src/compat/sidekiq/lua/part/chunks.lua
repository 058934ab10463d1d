-- chunks: one command for many values, in parts that Lua can pass on.
local function chunks(command, key, values)
  for from = 1, #values, 500 do
    redis.call(command, key, unpack(values, from, math.min(from + 499, #values)))
  end
end
