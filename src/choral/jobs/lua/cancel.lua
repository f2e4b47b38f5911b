-- ARGV: id
-- Returns the state after the call (running: its worker is notified by its next heartbeat), or nil for an unknown job.
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
