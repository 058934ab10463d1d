#!lua flags=allow-oom
-- set_alone: notes whether a node runs this job and no other. If the node dies, take_back counts a crash of a suspect only then.
-- keys: conf running
-- args: now node id fence alone
--   alone: 1 or 0
-- Returns { now, 1 if the node holds the job under this fence }
-- include read_time, check_format
local claim = $node .. ' ' .. $fence
local held = redis.call('HGET', @running, $id)
if not held or held:sub(1, #claim) ~= claim then
  return { now, 0 }
end
if $alone == '1' then
  redis.call('HSET', @conf, 'alone:' .. $node, $fence .. $id)
elseif redis.call('HGET', @conf, 'alone:' .. $node) == $fence .. $id then
  redis.call('HDEL', @conf, 'alone:' .. $node)
end
return { now, 1 }
