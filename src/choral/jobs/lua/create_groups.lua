-- Create the streams and the consumer group of the workers where they are missing.
for _, priority in ipairs({'interactive', 'batch'}) do
  local created = redis.pcall('XGROUP', 'CREATE', queue_key(priority), GROUP, '0', 'MKSTREAM')
  if created.err and not string.find(created.err, 'BUSYGROUP', 1, true) then
    return created
  end
end
return 'stored'
