#!lua
-- push: puts jobs into one queue that nobody can have pushed before, and that share no unique key with others.
-- KEYS 1 job 2 due 3 idle 4-7 ready
-- ARGV 1 now|'' 2 channel 3... the batch
-- Returns { now, {}, {}, 1: an idle node was woken }, but for the last as push_checked does
-- include now, wake, batch, put
return { now, {}, {}, woken }
