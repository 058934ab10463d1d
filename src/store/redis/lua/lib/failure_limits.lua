-- failure_limits: the newest failures of a job are kept, one numbered field of errors each.
local FAILURES_MAX = 50
