-- ARGV: how many, lease_s
-- Webhooks that are due. They stay on the list, due again after the lease, should this worker end before it tells.
local due = redis.call('ZRANGEBYSCORE', webhooks_key, '-inf', now, 'LIMIT', 0, ARGV[1])
local taken = {}
for _, id in ipairs(due) do
  local found = redis.call('HMGET', job_key(id), 'callback', 'round')
  if found[1] then
    redis.call('ZADD', webhooks_key, now + tonumber(ARGV[2]), id)
    table.insert(taken, id)
    table.insert(taken, found[1])
    table.insert(taken, found[2])
  else
    redis.call('ZREM', webhooks_key, id)
  end
end
return taken
