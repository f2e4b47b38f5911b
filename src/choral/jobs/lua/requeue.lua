-- ARGV: id, worker, entry
-- A worker that stops puts back a job it started, or an entry it received and did not start. No attempt is counted.
-- Returns 'stored', or 'rejected' if the worker no longer holds the job.
local id, job = ARGV[1], job_key(ARGV[1])
if is_leased_to(id, ARGV[2]) then
  redis.call('HINCRBY', job, 'attempts', -1)
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
