-- batch: where in ARGV the parts of a push begin.
-- ARGV 3-6 how many are ready at once, by priority 7 how many are scheduled 8 bytes of all their args
--      9... id, record of each, ready ones first; tickets of the ready; due, ticket of the scheduled
local STEP = 1000
local ready, scheduled = ARGV[3] + ARGV[4] + ARGV[5] + ARGV[6], tonumber(ARGV[7])
local jobs = ready + scheduled
local bytes = tonumber(ARGV[8])
local tickets_at = 9 + 2 * jobs
local due_at = tickets_at + ready
local rest_at = due_at + 2 * scheduled
