-- read_time: `now` is the server's time in microseconds, read once. A test passes its own time instead.
local time = redis.call('TIME')
-- Kept within 16 digits, the length of a time in every record, with room for any duration.
local now = math.max(0, math.min(tonumber($now) or (time[1] * 1000000 + time[2]), 5000000000000000))
