#!lua flags=no-writes
-- due_crons: returns cron rules of a queue that are to be checked now, and those of these names whose tick is waiting.
-- keys: conf cron ticks
-- args: now max_rules skipped names...
--   skipped: how many of the due rules to skip
-- Returns { now, { rule|nothing }, { rule of these names }, when to check next|'', the latest time at which ticks were planned if it is
-- still to come|'' }
-- include read_time, parse_int
local conf = redis.call('HMGET', @conf, 'format', 'transfer_mark', 'next_tick', 'planned_at')
if conf[1] and conf[1] ~= '1' then
  return redis.error_reply('FORMAT ' .. conf[1] .. ' ' .. @conf)
end
local transfer_mark, next_tick = conf[2], conf[3]
if transfer_mark then
  return { now, {}, {}, '', '' }
end
local CHUNK, BYTES = 15, 1048576
local max, rules, bytes = tonumber($max_rules), {}, 0
local names = redis.call('ZRANGE', @ticks, '-inf', now, 'BYSCORE', 'LIMIT', $skipped, max)
for from = 1, #names, CHUNK do
  -- Rules may have long args. Those that do not fit are still due at the next call.
  if bytes < BYTES then
    for _, rule in ipairs(redis.call('HMGET', @cron, unpack(names, from, math.min(from + CHUNK - 1, #names)))) do
      rules[#rules + 1] = rule
      bytes = bytes + (rule and #rule or 0)
    end
  end
end
local freed = {}
for at = &names, math.min(#ARGV, max + &names - 1) do
  local rule = redis.call('HGET', @cron, ARGV[at])
  local check_at = tonumber(redis.call('ZSCORE', @ticks, ARGV[at]))
  -- The rule is active, its tick waits, and it is not among the others.
  if rule and rule:sub(50, 51) == '01' and check_at and check_at > now then
    freed[#freed + 1] = rule
  end
end
return { now, rules, freed, next_tick or '', parse_int(conf[4], 16) > now and conf[4] or '' }
