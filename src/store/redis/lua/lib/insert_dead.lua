-- insert_dead: adds a job to the dead jobs and to the index. `kept_until` is when prune may delete it.
-- needs: index_terms, index_members
local function insert_dead(kept_until, id, meta)
  local members = {}
  add_dead_terms(members, id, meta)
  redis.call('ZADD', @dead, kept_until, id)
  add_to_index(members)
end
