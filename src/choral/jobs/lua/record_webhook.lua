-- ARGV: id, round, attempts, outcome (delivered, failed or pending), delay_s
-- Returns 'stored', or 'rejected' if the job was retried since.
local id, job = ARGV[1], job_key(ARGV[1])
if redis.call('HGET', job, 'round') ~= ARGV[2] then
  return 'rejected'
end
redis.call('HSET', job, 'webhook', ARGV[4], 'webhook_attempts', ARGV[3])
if ARGV[4] == 'pending' then
  redis.call('ZADD', webhooks_key, now + tonumber(ARGV[5]), id)
else
  redis.call('ZREM', webhooks_key, id)
  local fields = redis.call('HMGET', job, 'ended_at', 'keep_s')
  if tonumber(fields[1]) and tonumber(fields[2]) then
    expire(id, fields[1] + fields[2] - now)
  end
end
return 'stored'
