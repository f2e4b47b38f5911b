-- ARGV: id, worker, first_s, max_s
-- Put back a job that this worker has no place for; it waits longer each time. No attempt is counted.
-- Returns 'stored', or 'rejected' if the worker no longer holds the job.
local id, job = ARGV[1], job_key(ARGV[1])
if not is_leased_to(id, ARGV[2]) then
  return 'rejected'
end
redis.call('HINCRBY', job, 'attempts', -1)
if redis.call('HEXISTS', job, 'cancel') == 1 then
  finish(id, 'cancelled')
else
  local deferrals = redis.call('HINCRBY', job, 'deferrals', 1)
  delay(id, math.min(tonumber(ARGV[4]), tonumber(ARGV[3]) * 2 ^ (deferrals - 1)))
end
return 'stored'
