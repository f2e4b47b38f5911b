-- ARGV: worker, what it says of itself, seconds until it counts as gone, then id, phase, done_s, duration_s of each job
-- Keeps the jobs from being claimed by others. Returns those to be given up: id, cancel or lost, …
local worker = ARGV[1]
redis.call('SET', worker_key(worker), ARGV[2], 'EX', ARGV[3])
redis.call('ZADD', workers_key, now, worker)
redis.call('ZREMRANGEBYSCORE', workers_key, '-inf', now - tonumber(ARGV[3]))
local unwanted = {}
for i = 4, #ARGV, 4 do
  local id, job = ARGV[i], job_key(ARGV[i])
  if not is_with(id, worker) then
    table.insert(unwanted, id)
    table.insert(unwanted, 'lost')
  else
    redis.call('HSET', job, 'phase', ARGV[i + 1], 'done_s', ARGV[i + 2])
    if ARGV[i + 3] ~= '' then
      redis.call('HSET', job, 'duration_s', ARGV[i + 3])
    end
    local place = redis.call('HMGET', job, 'priority', 'entry', 'cancel')
    -- JUSTID: the count of deliveries stays a count of workers. pcall: the group may just have been lost.
    redis.pcall('XCLAIM', queue_key(place[1]), GROUP, worker, 0, place[2], 'JUSTID')
    if place[3] then
      table.insert(unwanted, id)
      table.insert(unwanted, 'cancel')
    end
  end
end
return unwanted
