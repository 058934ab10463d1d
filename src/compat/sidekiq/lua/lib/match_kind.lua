-- match_kind: returns the kind of an entry without a parser, if it is written as Sidekiq and ActiveJob write entries.
-- The kind of an ActiveJob is the class that one of these wraps.
local WRAPPERS = { ['ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper'] = true, ['Sidekiq::ActiveJob::Wrapper'] = true }

-- Match a field of the entry itself, not of an object in it: nothing before or after it opens or closes one. A quote in a
-- text is escaped.
local FIRST = '^({[^%[%]{}\\]-"%s":"([^"\\]*)")'
local CLASS, WRAPPED = FIRST:gsub('%%s', 'class'), FIRST:gsub('%%s', 'wrapped')
local CLASS_AFTER_ARGS = '%],"class":"([^"\\]*)"[^%[%]{}]*}$'

-- Returns how an entry begins, up to its kind, and its kind; nil if that needs a parser. The entries that Ruby writes do not.
local function match_kind(entry)
  local began, class = entry:match(CLASS)
  if class and not WRAPPERS[class] then
    return began, class
  end
  local wrapper, wrapped = entry:match(WRAPPED)
  if class then
    -- `class` and `wrapped` have either order.
    return wrapper and (#wrapper > #began and wrapper or began), wrapped
  end
  class = entry:match(CLASS_AFTER_ARGS)
  -- The class is behind the args, so the beginning says nothing about it.
  return nil, class and (WRAPPERS[class] and wrapped or not WRAPPERS[class] and class) or nil
end
