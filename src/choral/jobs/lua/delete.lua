-- ARGV: id
-- Returns the state the job was in; only one that has ended is forgotten. Nothing at all where there is no such job.
local id, job = ARGV[1], job_key(ARGV[1])
local state = redis.call('HGET', job, 'state')
if not state or not ENDED[state] then
  return state
end
local blob = redis.call('HGET', job, 'blob')
if blob then
  redis.call('DEL', blob_key(blob))
end
redis.call('DEL', job, result_key(id))
for _, list in ipairs({expiries_key, index_key, dead_key, webhooks_key}) do
  redis.call('ZREM', list, id)
end
return state
