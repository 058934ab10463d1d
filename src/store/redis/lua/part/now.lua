-- now: the store's time in microseconds, read once; a test may set it instead.
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or (time[1] * 1000000 + time[2])
