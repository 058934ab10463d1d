#!lua flags=allow-oom
-- prune: deletes done jobs past their retention or beyond a number. The dead set is not trimmed here: Ruby's settings say how many
-- dead entries are kept, and each burial trims them.
-- keys: conf job done removed[2]
-- args: now max_done max_deleted remember
-- Returns { now, how many were deleted }
-- include read_time, check_format, rotate_removed, choose_removed, call_in_chunks
local max = tonumber($max_deleted)
choose_removed(tonumber($remember))
local over = redis.call('ZRANGE', @done, '-inf', now, 'BYSCORE', 'LIMIT', 0, max)
if #over == 0 then
  local too_many = redis.call('ZCARD', @done) - tonumber($max_done)
  over = too_many > 0 and redis.call('ZRANGE', @done, 0, math.min(too_many, max) - 1) or {}
end
call_in_chunks('ZREM', @done, over)
call_in_chunks('HDEL', @job, over)
return { now, #over }
