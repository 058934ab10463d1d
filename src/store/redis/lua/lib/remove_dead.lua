-- remove_dead: removes a job from the dead jobs, its group and the index. Returns whether it was dead.
-- needs: index_terms, index_members, group_counts
local function remove_dead(id, meta)
  if redis.call('ZREM', @dead, id) == 0 then
    return false
  end
  if meta then
    local members = {}
    add_dead_terms(members, id, meta)
    drop_from_index(members)
    leave_group(meta)
  end
  return true
end
