-- ARGV: id, priority, entry, error, error_kind
-- Fail a job that cannot be read, whatever is wrong with its record, so that no worker receives it again.
local id, job = ARGV[1], job_key(ARGV[1])
redis.call('XACK', queue_key(ARGV[2]), GROUP, ARGV[3])
redis.call('XDEL', queue_key(ARGV[2]), ARGV[3])
if redis.call('TYPE', job).ok ~= 'hash' then
  return 'dropped'
end
redis.call('HSET', job, 'priority', ARGV[2], 'entry', ARGV[3], 'error', ARGV[4], 'error_kind', ARGV[5])
finish(id, 'failed')
return 'stored'
