-- ARGV: id, worker, result, timings, duration_s
-- Store the result and acknowledge the job in one step. Returns 'stored', 'duplicate' (it had succeeded already: the
-- result is overwritten with an equal one) or 'rejected' (it had ended in another way).
local id, job = ARGV[1], job_key(ARGV[1])
local fields = redis.call('HMGET', job, 'state', 'keep_s')
if not fields[1] or (ENDED[fields[1]] and fields[1] ~= 'succeeded') then
  return 'rejected'
end
redis.call('SET', result_key(id), ARGV[3], 'EX', fields[2])
if fields[1] == 'succeeded' then
  return 'duplicate'
end
redis.call('HSET', job, 'worker', ARGV[2], 'timings', ARGV[4], 'duration_s', ARGV[5], 'done_s', ARGV[5])
local blob = redis.call('HGET', job, 'blob')
if blob then
  redis.call('DEL', blob_key(blob))
end
redis.call('HDEL', job, 'audio', 'blob', 'error', 'error_kind')
finish(id, 'succeeded')
return 'stored'
