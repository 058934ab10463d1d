-- keep_meta: a meta that can be read stays with its job, its group only with a dead one; what belongs to no job goes.
-- KEYS 3 meta 17 notes 18 groups
local function keep_meta(id, meta, to)
  local group = meta and meta:sub(73) or ''
  local is_whole = meta and meta:match('^' .. ('%d'):rep(72)) and (group == '' or #group == 16)
  if to == 'none' then
    drop_notes(KEYS[17], { id })
  end
  if meta and (to == 'none' or not is_whole) then
    leave_group(KEYS[18], meta)
    redis.call('HDEL', KEYS[3], id)
    return nil
  end
  if group ~= '' and to ~= 'dead' then
    leave_group(KEYS[18], meta)
    meta = meta:sub(1, 72)
    redis.call('HSET', KEYS[3], id, meta)
  end
  return meta
end
