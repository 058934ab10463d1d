-- keep_meta: a meta that can be read stays with its job; group and words only with a dead one, which has both; what belongs to no
-- job goes. Returns the meta.
-- KEYS 3 meta 17 notes 18 groups
local function keep_meta(id, meta, to, record)
  local group = meta and meta:sub(73, 88) or ''
  local is_whole = meta and meta:match('^' .. ('%d'):rep(72)) and (group == '' or #group == 16)
  if to == 'none' then
    drop_notes(KEYS[17], { id })
  end
  if meta and (to ~= 'dead' or not is_whole) then
    leave_group(KEYS[18], meta)
    group = ''
  end
  if to ~= 'dead' and (to == 'none' or not is_whole) then
    redis.call('HDEL', KEYS[3], id)
    return nil
  end
  local kept = is_whole and meta:sub(1, 72) or text(0) .. text(now) .. ('0'):rep(40)
  if to == 'dead' then
    group = group ~= '' and group or join_group(KEYS[18], ('0'):rep(16), kept:sub(17, 32), '\t…')
    kept = kept .. group .. words_of(record)
  end
  if kept ~= meta then
    redis.call('HSET', KEYS[3], id, kept)
  end
  return kept
end
