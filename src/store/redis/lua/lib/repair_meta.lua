-- repair_meta: keeps a readable meta. Only a dead job has a group and terms after it, and a
-- cancelled one always has a meta. Without a job (`to` is none) all of it
-- goes. Returns the meta.
-- needs: to_digits, record_fields, drop_progress, group_counts
local function repair_meta(id, meta, to, record)
  local group = meta and meta:sub(73, 88) or ''
  local is_whole = meta and meta:match('^' .. ('%d'):rep(72)) and (group == '' or #group == 16)
  if to == 'none' then
    drop_progress({ id })
  end
  if meta and (to ~= 'dead' or not is_whole) then
    leave_group(meta)
    group = ''
  end
  if to ~= 'dead' and to ~= 'cancelled' and (to == 'none' or not is_whole) then
    redis.call('HDEL', @meta, id)
    return nil
  end
  local kept = is_whole and meta:sub(1, 72) or to_digits(0) .. to_digits(now) .. ('0'):rep(40)
  if to == 'dead' then
    group = group ~= '' and group or join_group(('0'):rep(16), kept:sub(17, 32), '\t…')
    kept = kept .. group .. read_terms(record)
  end
  if kept ~= meta then
    redis.call('HSET', @meta, id, kept)
  end
  return kept
end
