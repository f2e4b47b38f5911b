-- ARGV: worker, its status as JSON, seconds until it counts as gone, then id, phase, done_s, duration_s of each job
-- Renew the leases of a worker's jobs. Returns the jobs to abort: id, reason (cancel or lease_lost), …
local worker = ARGV[1]
redis.call('SET', worker_key(worker), ARGV[2], 'EX', ARGV[3])
redis.call('ZADD', workers_key, now, worker)
redis.call('ZREMRANGEBYSCORE', workers_key, '-inf', now - tonumber(ARGV[3]))
local aborted = {}
for i = 4, #ARGV, 4 do
  local id, job = ARGV[i], job_key(ARGV[i])
  if not is_leased_to(id, worker) then
    table.insert(aborted, id)
    table.insert(aborted, 'lease_lost')
  else
    redis.call('HSET', job, 'phase', ARGV[i + 1], 'done_s', ARGV[i + 2])
    if ARGV[i + 3] ~= '' then
      redis.call('HSET', job, 'duration_s', ARGV[i + 3])
    end
    local fields = redis.call('HMGET', job, 'priority', 'entry', 'cancel')
    -- JUSTID: do not increment the delivery count. pcall: the consumer group may just have been lost.
    redis.pcall('XCLAIM', queue_key(fields[1]), GROUP, worker, 0, fields[2], 'JUSTID')
    if fields[3] then
      table.insert(aborted, id)
      table.insert(aborted, 'cancel')
    end
  end
end
return aborted
