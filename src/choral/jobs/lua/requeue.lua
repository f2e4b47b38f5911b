-- ARGV: id, worker, entry, max_crashes
-- A worker that stops puts back a job it started, or an entry it received and did not start. No attempt is counted.
-- With max_crashes over 0, the engine failed while it ran the job, which may be the cause: a crash is counted.
-- Returns 'stored', 'dead', or 'rejected' if the worker no longer holds the job.
local id, job = ARGV[1], job_key(ARGV[1])
if is_leased_to(id, ARGV[2]) then
  if tonumber(ARGV[4]) == 0 then
    redis.call('HINCRBY', job, 'attempts', -1)
  elseif count_crash(id, ARGV[2], ARGV[4]) then
    return 'dead'
  end
else
  local fields = redis.call('HMGET', job, 'state', 'entry', 'priority')
  local is_received = fields[1] == 'queued' and fields[2] == ARGV[3]
    and #redis.call('XPENDING', queue_key(fields[3]), GROUP, ARGV[3], ARGV[3], 1, ARGV[2]) == 1
  if not is_received then
    return 'rejected'
  end
end
dequeue(id)
enqueue(id)
return 'stored'
