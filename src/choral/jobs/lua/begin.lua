-- ARGV: id, priority, entry, worker, max_crashes
-- A worker got this entry. Returns begun with what it needs, or what became of the job instead.
local id, job, entry, worker = ARGV[1], job_key(ARGV[1]), ARGV[3], ARGV[4]
local found = redis.call('HMGET', job, 'state', 'entry', 'worker', 'cancel')
if not found[1] or ENDED[found[1]] or found[2] ~= entry then
  redis.call('XACK', queue_key(ARGV[2]), GROUP, entry)
  redis.call('XDEL', queue_key(ARGV[2]), entry)
  return {'over'}
end
if found[4] then
  finish(id, 'cancelled')
  return {'cancelled'}
end
if found[1] == 'running' and found[3] ~= worker then
  local crashes = redis.call('HINCRBY', job, 'crashes', 1)
  if crashes >= tonumber(ARGV[5]) then
    local times = crashes == 1 and 'once' or crashes .. ' times'
    redis.call('HSET', job, 'error_kind', 'WorkerCrashed', 'error',
      'its worker ended without a word, ' .. times .. ' (last ' .. found[3] .. '): look at the logs of that worker')
    finish(id, 'dead')
    return {'dead'}
  end
end
redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'state', 'running', 'worker', worker, 'phase', 'prep', 'started_at', now, 'done_s', 0)
tell(id, 'running')
local given = redis.call('HMGET', job, 'request', 'audio', 'attempts', 'crashes', 'queued_at')
return {'begun', given[1], given[2] or '', given[3], given[4] or '0', tostring(now - tonumber(given[5]))}
