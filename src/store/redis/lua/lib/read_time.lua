-- read_time: `now` is the server's time in microseconds, read once. A test passes its own time instead.
local time = redis.call('TIME')
local now = tonumber($now) or (time[1] * 1000000 + time[2])
