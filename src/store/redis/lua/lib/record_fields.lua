-- record_fields: reads numbers of a meta and fields of a record. A damaged number counts as 0, a damaged priority as normal:
-- a script that failed here would leave a half-finished change behind.
-- functions: read_count, add_one, args_bytes, read_terms, read_priority
local COUNT_MAX = 2147483647

-- Returns the number of 10 digits that begins at this byte of a meta.
local function read_count(meta, from)
  local digits = meta:sub(from, from + 9)
  return digits:match('^%d+$') and math.min(tonumber(digits), COUNT_MAX) or 0
end

local function add_one(count)
  return math.min(count + 1, COUNT_MAX)
end

-- Returns how many bytes of args a record has.
local function args_bytes(record)
  return #record - (record:find('\n', 1, true) or #record)
end

-- Returns the index terms of a record: its kind and its tags, separated by spaces.
local FIELD = '[^\t\n]*\t'
local KIND_AND_TAGS = '^' .. FIELD .. '([^\t\n]*)\t' .. FIELD:rep(6) .. '([^\t\n]*)'
local function read_terms(record)
  local kind, tags = record:match(KIND_AND_TAGS)
  return kind and (tags == '' and kind or kind .. ' ' .. tags) or ''
end

-- Returns 0 (critical) to 3 (low).
local function read_priority(record)
  local priority = (record:byte(2) or 50) - 48
  return priority >= 0 and priority <= 3 and priority or 2
end
