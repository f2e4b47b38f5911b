-- After a stream was lost: queue every job again that should have an entry and has none. Returns how many.
local n_queued = 0
for _, id in ipairs(redis.call('ZRANGE', index_key, 0, -1)) do
  local fields = redis.pcall('HMGET', job_key(id), 'state', 'priority', 'entry')
  local is_open = fields[1] == 'queued' or fields[1] == 'running'
  if is_open and fields[2] and fields[3]
    and #redis.call('XRANGE', queue_key(fields[2]), fields[3], fields[3]) == 0 then
    enqueue(id)
    n_queued = n_queued + 1
  end
end
return n_queued
