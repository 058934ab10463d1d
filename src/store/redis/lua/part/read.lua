-- read: a number of a meta, and the priority of a record. What somebody has damaged counts as 0, and as normal:
-- a script that stumbled over it half-way would leave half a step behind.
local COUNT_MAX = 2147483647

local function count(meta, from)
  local digits = meta:sub(from, from + 9)
  return digits:match('^%d+$') and math.min(tonumber(digits), COUNT_MAX) or 0
end

local function one_more(count)
  return math.min(count + 1, COUNT_MAX)
end

-- How many bytes of args a record has.
local function bytes_of(record)
  return #record - (record:find('\n', 1, true) or #record)
end

-- The words of a record: its kind and its tags, between spaces.
local FIELD = '[^\t\n]*\t'
local KIND_AND_TAGS = '^' .. FIELD .. '([^\t\n]*)\t' .. FIELD:rep(6) .. '([^\t\n]*)'
local function words_of(record)
  local kind, tags = record:match(KIND_AND_TAGS)
  return kind and (tags == '' and kind or kind .. ' ' .. tags) or ''
end

local function lane_of(record)
  local lane = (record:byte(2) or 50) - 48
  return lane >= 0 and lane <= 3 and lane or 2
end
