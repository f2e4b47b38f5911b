-- ARGV: id, priority, entry, worker, max_crashes
-- A worker received this entry. Returns 'started' and the job's data, or what became of the job instead.
local id, job, entry, worker = ARGV[1], job_key(ARGV[1]), ARGV[3], ARGV[4]
local fields = redis.call('HMGET', job, 'state', 'entry', 'worker', 'cancel')
if not fields[1] or ENDED[fields[1]] or fields[2] ~= entry then
  redis.call('XACK', queue_key(ARGV[2]), GROUP, entry)
  redis.call('XDEL', queue_key(ARGV[2]), entry)
  return {'stale'}
end
if fields[4] then
  finish(id, 'cancelled')
  return {'cancelled'}
end
if fields[1] == 'running' and fields[3] ~= worker and count_crash(id, fields[3], ARGV[5]) then
  return {'dead'}
end
redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'state', 'running', 'worker', worker, 'phase', 'prep', 'started_at', now, 'done_s', 0)
publish(id, 'running')
local data = redis.call('HMGET', job, 'request', 'audio', 'attempts', 'crashes', 'queued_at')
return {'started', data[1], data[2] or '', data[3], data[4] or '0', tostring(now - tonumber(data[5]))}
