-- call_in_chunks: calls a command with many values, in chunks that Lua can pass.
local function call_in_chunks(command, key, values)
  for from = 1, #values, 500 do
    redis.call(command, key, unpack(values, from, math.min(from + 499, #values)))
  end
end
