-- ARGV: id, request, priority, callback, keep_s, audio, blob, queue_limit, blob_keep_s
-- Returns 'new', 'known' (the id exists: nothing is done), 'full' or 'expired' (the blob is gone). A repeated submit of
-- the same blob is 'new' again: its first response was lost.
local id, job = ARGV[1], job_key(ARGV[1])
if redis.call('EXISTS', job) == 1 then
  local is_same_upload = ARGV[7] ~= '' and redis.call('HGET', job, 'blob') == ARGV[7]
  return is_same_upload and 'new' or 'known'
end
if redis.call('XLEN', queue_key(ARGV[3])) >= tonumber(ARGV[8]) then
  return 'full'
end
local refusal = refuse_without_memory(#ARGV[2] + #ARGV[6])
if refusal then
  return refusal
end
if ARGV[7] ~= '' and redis.call('EXPIRE', blob_key(ARGV[7]), ARGV[9]) == 0 then
  return 'expired'
end
redis.call('HSET', job, 'request', ARGV[2], 'priority', ARGV[3], 'keep_s', ARGV[5], 'created_at', now, 'round', 1)
if ARGV[4] ~= '' then
  redis.call('HSET', job, 'callback', ARGV[4])
end
if ARGV[6] ~= '' then
  redis.call('HSET', job, 'audio', ARGV[6])
end
if ARGV[7] ~= '' then
  redis.call('HSET', job, 'blob', ARGV[7])
end
redis.call('ZADD', index_key, now, id)
enqueue(id)
return 'new'
