-- ARGV: max_webhooks, lease_s
-- Returns due webhooks: id, round, callback, … They become due again after the lease, in case this worker dies.
local due = redis.call('ZRANGEBYSCORE', webhooks_key, '-inf', now, 'LIMIT', 0, ARGV[1])
local leased = {}
for _, id in ipairs(due) do
  local fields = redis.pcall('HMGET', job_key(id), 'callback', 'round') -- pcall: the record may be damaged
  if fields[1] then
    redis.call('ZADD', webhooks_key, now + tonumber(ARGV[2]), id)
    table.insert(leased, id)
    table.insert(leased, fields[2] or '1')
    table.insert(leased, fields[1])
  else
    redis.call('ZREM', webhooks_key, id)
  end
end
return leased
