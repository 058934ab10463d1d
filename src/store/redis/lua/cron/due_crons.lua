#!lua flags=no-writes
-- due_crons: returns cron rules of a queue that are to be checked now, and those of these names whose tick is waiting.
-- keys: conf cron ticks
-- args: now max_rules names...
-- Returns { now, { rule|nothing }, when to check next|'' }
-- include read_time
local conf = redis.call('HMGET', @conf, 'format', 'transfer_mark', 'next_tick')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local transfer_mark, next_tick = conf[2], conf[3]
if transfer_mark then
  return { now, {}, '' }
end
local CHUNK, BYTES = 15, 1048576
local max, rules, bytes = tonumber($max_rules), {}, 0
local names = redis.call('ZRANGE', @ticks, '-inf', now, 'BYSCORE', 'LIMIT', 0, max)
for from = 1, #names, CHUNK do
  -- Rules may have long args. Those that do not fit are still due at the next call.
  if bytes < BYTES then
    for _, rule in ipairs(redis.call('HMGET', @cron, unpack(names, from, math.min(from + CHUNK - 1, #names)))) do
      rules[#rules + 1] = rule
      bytes = bytes + (rule and #rule or 0)
    end
  end
end
for at = &names, math.min(#ARGV, max + &names - 1) do
  local rule = redis.call('HGET', @cron, ARGV[at])
  local check_at = tonumber(redis.call('ZSCORE', @ticks, ARGV[at]))
  -- The rule is active, its tick waits, and it is not among the others.
  if rule and #rules < max and rule:sub(50, 51) == '01' and check_at and check_at > now then
    rules[#rules + 1] = rule
  end
end
return { now, rules, next_tick or '' }
