-- ARGV: id, worker, result, timings, duration_s
-- Store the result and acknowledge the job in one step. Returns 'stored', 'duplicate' (it had succeeded already: the
-- result is overwritten with an equal one) or 'rejected' (it had ended in another way).
local id, job = ARGV[1], job_key(ARGV[1])
local state = redis.call('HGET', job, 'state')
if not state or (ENDED[state] and state ~= 'succeeded') then
  return 'rejected'
end
if state == 'succeeded' then
  redis.call('SET', result_key(id), ARGV[3], 'EX', math.max(1, redis.call('TTL', job)))
  return 'duplicate'
end
redis.call('SET', result_key(id), ARGV[3])
redis.call('HSET', job, 'worker', ARGV[2], 'timings', ARGV[4], 'duration_s', ARGV[5], 'done_s', ARGV[5])
redis.call('HDEL', job, 'error', 'error_kind')
finish(id, 'succeeded')
return 'stored'
