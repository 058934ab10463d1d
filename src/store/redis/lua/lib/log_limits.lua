-- log_limits: the newest log lines of a job are kept. Fields of progress: the id and n (number of the last line; present if any
-- other is), p (progress), r (result), or l and a number (a line).
local LOG_LINES_MAX = 100
