#!lua flags=allow-oom
-- set_alone: notes whether a node runs this entry and no other. If the node dies, take_back counts a crash of a suspect only then.
-- keys: conf running
-- args: now node field alone
--   field: of the entry in the hash of its node; alone: 1 or 0
-- Returns { now, 1 if the node holds the entry }
-- include read_time, check_format
if redis.call('HEXISTS', @running, $field) == 0 then
  return { now, 0 }
end
if $alone == '1' then
  redis.call('HSET', @conf, 'alone:' .. $node, $field)
elseif redis.call('HGET', @conf, 'alone:' .. $node) == $field then
  redis.call('HDEL', @conf, 'alone:' .. $node)
end
return { now, 1 }
