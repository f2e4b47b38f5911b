-- ARGV: idle_ms
-- Consumers of workers that are long gone leave the group; one that still has jobs stays until they are claimed.
for _, priority in ipairs({'interactive', 'batch'}) do
  local queue = queue_key(priority)
  for _, facts in ipairs(redis.call('XINFO', 'CONSUMERS', queue, GROUP)) do
    local consumer = {}
    for i = 1, #facts, 2 do
      consumer[facts[i]] = facts[i + 1]
    end
    if consumer.pending == 0 and consumer.idle > tonumber(ARGV[1]) then
      redis.call('XGROUP', 'DELCONSUMER', queue, GROUP, consumer.name)
    end
  end
end
return 'stored'
