-- settle_one: applies one outcome that is not a plain ack; its fields begin at `at` of the arguments. Tickets that go back to
-- the head of their list are put into `released`, how long a done job is kept into `times`. Returns whether the job goes on.
-- needs: to_digits, complete_ticket, add_run, drop_runs, group_counts, index_terms, drop_progress, store_result, choose_removed, insert_dead, insert_scheduled, deferred_hints
local function settle_one(at, released, times)
  local id, outcome, time, ticket = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3]), complete_ticket(ARGV[at + 4])
  local due, counts, run, unique_key = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 9]
  if run ~= '' and outcome ~= 'k' then
    add_run(id, tonumber(ARGV[at + 8]), to_digits(now) .. run)
  end
  local meta = (due ~= '' and due or to_digits(now + time)) .. to_digits(now) .. counts
  if outcome == 'b' then
    meta = meta .. join_group(ARGV[at + 10], to_digits(now), ARGV[at + 11]) .. ticket_terms(ticket)
  end
  if counts ~= '' then
    redis.call('HSET', @meta, id, meta)
  end
  if outcome == 'a' then
    meta = redis.call('HGET', @meta, id)
    if meta then
      drop_runs({ id }, { meta })
      redis.call('HDEL', @meta, id)
    end
    redis.call('HDEL', @job, id)
    drop_progress({ id })
    redis.call('SADD', choose_removed(tonumber($remember)), id)
  elseif outcome == 'k' then
    store_result(id, ARGV[at + 10])
    if run ~= '' then
      redis.call('HSET', @runs, id, run)
    end
    redis.call('ZADD', @done, now + time, id)
    times[#times + 1] = time
  elseif outcome == 'b' then
    insert_dead(now + time, id, meta)
  elseif time > 0 then
    insert_scheduled(now + time, ticket)
    if outcome == 'l' and (ARGV[at + 10] or '') ~= '' then
      add_deferred_hint(ARGV[at + 10], ticket, now + time, ARGV[at + 11])
    end
  elseif outcome == 'r' then
    redis.call('RPUSH', @ready[ticket:byte(17) - 96], ticket)
  else
    table.insert(released, 1, ticket)
  end
  local goes_on = outcome == 'r' or outcome == 'l'
  if unique_key ~= '' and not goes_on and redis.call('HGET', @unique, unique_key) == id then
    redis.call('HDEL', @unique, unique_key)
  end
  return goes_on
end
