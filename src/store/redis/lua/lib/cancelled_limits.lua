-- cancelled_limits: how many cancelled jobs one reply to a heartbeat lists.
local CANCELLED_MAX = 500
