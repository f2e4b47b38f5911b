-- Put jobs whose retry is due back into their queue. Returns how many.
-- What is due moves with a clock that was set back, or of another Redis that took over: it would wait for that longer.
local jump_s = now - (tonumber(redis.call('GET', clock_key) or now) or now)
if jump_s < -MAX_CLOCK_STEP_S then
  for _, list in ipairs({delayed_key, webhooks_key}) do
    for _, id in ipairs(redis.call('ZRANGE', list, 0, -1)) do
      redis.call('ZINCRBY', list, jump_s, id)
    end
  end
end
redis.call('SET', clock_key, now)
local due = redis.call('ZRANGEBYSCORE', delayed_key, '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(due) do
  redis.call('ZREM', delayed_key, id)
  local fields = redis.pcall('HMGET', job_key(id), 'state') -- pcall: the record may be damaged
  if fields[1] == 'waiting' then
    enqueue(id)
  end
end
remove_expired()
return #due
