-- After a stream was lost: queue every job again that should have an entry and has none. Returns how many.
local n_queued = 0
for _, id in ipairs(redis.call('ZRANGE', index_key, 0, -1)) do
  local found = redis.call('HMGET', job_key(id), 'state', 'priority', 'entry')
  local is_open = found[1] == 'queued' or found[1] == 'running'
  if is_open and #redis.call('XRANGE', queue_key(found[2]), found[3], found[3]) == 0 then
    enqueue(id)
    n_queued = n_queued + 1
  end
end
return n_queued
