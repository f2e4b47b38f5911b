-- ARGV: id, worker
-- A worker that ends gives a job back: it is queued again as if that worker had never had it.
local id = ARGV[1]
if not is_with(id, ARGV[2]) then
  return 'late'
end
leave_queue(id)
redis.call('HINCRBY', job_key(id), 'attempts', -1)
enter_queue(id)
return 'stored'
