-- ARGV: id
-- Returns the state the job is in now; running: its worker was told. Nothing at all where there is no such job.
local id, job = ARGV[1], job_key(ARGV[1])
local state = redis.call('HGET', job, 'state')
if not state or ENDED[state] then
  return state
end
if state == 'running' then
  redis.call('HSET', job, 'cancel', 1)
  return 'running'
end
finish(id, 'cancelled')
return 'cancelled'
