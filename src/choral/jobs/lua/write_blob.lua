-- ARGV: name, offset, chunk, bytes of the whole blob, keep_s
-- Write a chunk of a blob at its offset. Until its job is submitted, the blob expires soon after its last chunk.
local blob = blob_key(ARGV[1])
local refusal = refuse_without_memory(tonumber(ARGV[4]) - tonumber(ARGV[2]))
if refusal then
  return refusal
end
redis.call('SETRANGE', blob, ARGV[2], ARGV[3])
redis.call('EXPIRE', blob, ARGV[5])
return 'stored'
