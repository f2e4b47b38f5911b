-- ARGV: id, worker, state (failed, dead, cancelled or waiting), error, error_kind, timings, delay_s
-- Returns 'stored', or 'rejected' if the worker no longer holds the job.
local id, job, state = ARGV[1], job_key(ARGV[1]), ARGV[3]
if not is_leased_to(id, ARGV[2]) then
  return 'rejected'
end
redis.call('HSET', job, 'timings', ARGV[6])
if ARGV[4] ~= '' then
  redis.call('HSET', job, 'error', ARGV[4], 'error_kind', ARGV[5])
end
if state ~= 'waiting' then
  finish(id, state)
elseif redis.call('HEXISTS', job, 'cancel') == 1 then
  finish(id, 'cancelled')
else
  delay(id, tonumber(ARGV[7]))
end
return 'stored'
