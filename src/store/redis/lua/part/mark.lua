-- mark: if two looks at a queue find the same mark, nothing has come, gone or moved between them that is counted.
-- KEYS 1 conf 2 job 3 held 4 due 5 done 6 dead 7,8 gone 9 groups
local function mark()
  local conf, said = redis.call('HGETALL', KEYS[1]), {}
  for at = 1, #conf, 2 do
    said[#said + 1] = conf[at] .. '\0' .. conf[at + 1]
  end
  table.sort(said)
  for key = 2, 9 do
    local command = (key < 4 or key == 9) and 'HLEN' or key < 7 and 'ZCARD' or 'SCARD'
    said[#said + 1] = tostring(redis.call(command, KEYS[key]))
  end
  return redis.sha1hex(table.concat(said, '\n'))
end
