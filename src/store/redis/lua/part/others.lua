-- others: outcomes that are not plain acks, of jobs in trouble or with a unique key.
local head = {}
local function other(at)
  local id, outcome, time, ticket = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  local due, counts, failure, key = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 9]
  if failure ~= '' then
    add_history(KEYS[5], id, tonumber(ARGV[at + 8]), text(now) .. failure)
  end
  if counts ~= '' then
    redis.call('HSET', KEYS[4], id, (due ~= '' and due or text(now + time)) .. text(now) .. counts)
  end
  if outcome == 'a' then
    local meta = redis.call('HGET', KEYS[4], id)
    if meta then
      drop_history(KEYS[5], id, meta)
      redis.call('HDEL', KEYS[4], id)
    end
    redis.call('HDEL', KEYS[3], id)
    redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[4])), id)
  elseif outcome == 'k' then
    redis.call('ZADD', KEYS[7], now + time, id)
  elseif outcome == 'b' then
    redis.call('ZADD', KEYS[8], now + time, id)
  elseif time > 0 then
    redis.call('ZADD', KEYS[6], now + time, ticket)
  elseif outcome == 'r' then
    redis.call('RPUSH', KEYS[13 + ticket:byte(17) - 97], ticket)
  else
    table.insert(head, 1, ticket)
  end
  if key ~= '' and outcome ~= 'r' and outcome ~= 'l' and redis.call('HGET', KEYS[9], key) == id then
    redis.call('HDEL', KEYS[9], key)
  end
  return outcome == 'r' or outcome == 'l'
end

local again = false
for at = 7 + 2 * plain + 3 * kept, #ARGV, 10 do
  if redis.call('HGET', KEYS[2], ARGV[at]) ~= ARGV[at + 1] then
    lost[#lost + 1] = ARGV[at]
  else
    freed = freed + redis.call('HDEL', KEYS[2], ARGV[at])
    again = other(at) or again
  end
end
spread('LPUSH', 13, head)
if again then
  wake(KEYS[12], ARGV[2])
end
