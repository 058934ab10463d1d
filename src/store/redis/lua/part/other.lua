-- other: one outcome that is not a plain ack, or is of a job in trouble or with a unique key or a result; `head` are those that
-- go back to the head of their lists. Returns whether the job goes on.
local head = {}
local function other(at)
  local id, outcome, time, ticket = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3]), filled(ARGV[at + 4])
  local due, counts, failure, key = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 9]
  if failure ~= '' then
    add_history(KEYS[5], id, tonumber(ARGV[at + 8]), text(now) .. failure)
  end
  local meta = (due ~= '' and due or text(now + time)) .. text(now) .. counts
  if outcome == 'b' then
    -- A dead one has its group behind it, and its words.
    meta = meta .. join_group(KEYS[19], ARGV[at + 10], text(now), ARGV[at + 11]) .. words_in(ticket)
  end
  if counts ~= '' then
    redis.call('HSET', KEYS[4], id, meta)
  end
  if outcome == 'a' then
    meta = redis.call('HGET', KEYS[4], id)
    if meta then
      drop_history(KEYS[5], id, meta)
      redis.call('HDEL', KEYS[4], id)
    end
    redis.call('HDEL', KEYS[3], id)
    drop_notes(KEYS[18], { id })
    redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[4])), id)
  elseif outcome == 'k' then
    keep_result(KEYS[18], id, ARGV[at + 10])
    redis.call('ZADD', KEYS[7], now + time, id)
    keeps(time)
  elseif outcome == 'b' then
    bury(KEYS[8], now + time, id, meta)
  elseif time > 0 then
    schedule(KEYS[6], now + time, ticket)
    hint_at(outcome == 'l' and ARGV[at + 10], ticket, now + time, ARGV[at + 11])
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
