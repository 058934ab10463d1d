-- unbury: takes a job out of the dead, out of its group and from under its words. Returns whether it was dead.
local function unbury(dead, groups, id, meta)
  if redis.call('ZREM', dead, id) == 0 then
    return false
  end
  if meta then
    local members = {}
    words_dead(members, id, meta)
    drop_words(members)
    leave_group(groups, meta)
  end
  return true
end
