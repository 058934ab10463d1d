-- run_limits: the newest runs of a job are kept, one field of runs each: the id and a number from 1. Number 0 is the ack of a done job.
local RUNS_MAX = 50
