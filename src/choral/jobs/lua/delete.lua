-- ARGV: id
-- Delete an ended job and its result. Returns the state it was in, or nil for an unknown job; other states stay.
local id, job = ARGV[1], job_key(ARGV[1])
local state = redis.call('HGET', job, 'state')
if not state or not ENDED[state] then
  return state
end
local blob = redis.call('HGET', job, 'blob')
if blob then
  redis.call('UNLINK', blob_key(blob))
end
redis.call('DEL', job, result_key(id))
for _, list in ipairs({expiries_key, index_key, dead_key, webhooks_key}) do
  redis.call('ZREM', list, id)
end
return state
