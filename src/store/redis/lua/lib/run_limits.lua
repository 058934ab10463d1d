-- run_limits: the newest runs of a job are kept, one field of runs each: the id and a number from 1. The ack of a done job has the id alone.
local RUNS_MAX = 50
