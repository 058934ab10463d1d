-- settle_cancelled: ends a marked job whose attempt did not succeed; the fields of its outcome begin at `at` of the arguments, and
-- `held` is its held value. Returns how many bytes of args the caller has not counted as ended.
-- needs: to_digits, record_fields, add_run, insert_cancelled
local function settle_cancelled(at, held)
  local id, counts, run = ARGV[at], ARGV[at + 6], ARGV[at + 7]
  local record, meta = redis.call('HGET', @job, id) or '', redis.call('HGET', @meta, id)
  if run ~= '' then
    add_run(id, tonumber(ARGV[at + 8]), to_digits(now) .. run)
  end
  if counts ~= '' then
    meta = (meta and meta:match('^' .. ('%d'):rep(16)) or to_digits(0)) .. to_digits(now) .. counts
  end
  insert_cancelled(id, record, meta, read_cancel_keep(held))
  return ARGV[at + 2] == 'b' and 0 or args_bytes(record)
end
