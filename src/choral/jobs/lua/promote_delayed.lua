-- Put jobs whose retry is due back into their queue. Returns how many.
local due = redis.call('ZRANGEBYSCORE', delayed_key, '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(due) do
  redis.call('ZREM', delayed_key, id)
  if redis.call('HGET', job_key(id), 'state') == 'waiting' then
    enqueue(id)
  end
end
remove_expired()
return #due
