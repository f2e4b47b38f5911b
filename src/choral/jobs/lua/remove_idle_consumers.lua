-- ARGV: idle_ms
-- Remove consumers of workers that are long gone; one with pending jobs stays until they are claimed.
for _, priority in ipairs({'interactive', 'batch'}) do
  local queue = queue_key(priority)
  for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', queue, GROUP)) do
    local consumer = {}
    for i = 1, #fields, 2 do
      consumer[fields[i]] = fields[i + 1]
    end
    if consumer.pending == 0 and consumer.idle > tonumber(ARGV[1]) then
      redis.call('XGROUP', 'DELCONSUMER', queue, GROUP, consumer.name)
    end
  end
end
return 'stored'
