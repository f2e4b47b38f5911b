-- ARGV: id
-- Queue a job that ended without a result again, as its next round. Returns the state it was in, or 'no_audio' if the
-- audio was deleted when it ended.
local id, job = ARGV[1], job_key(ARGV[1])
local state = redis.call('HGET', job, 'state')
if not state or not ENDED[state] or state == 'succeeded' then
  return state
end
if redis.call('HEXISTS', job, 'audio_deleted') == 1 then
  return 'no_audio'
end
redis.call('PERSIST', job)
redis.call('HDEL', job, 'attempts', 'crashes', 'error', 'error_kind', 'timings', 'ended_at', 'webhook',
  'webhook_attempts', 'deferrals')
redis.call('HINCRBY', job, 'round', 1)
redis.call('ZREM', expiries_key, id)
redis.call('ZREM', dead_key, id)
redis.call('ZREM', webhooks_key, id)
enqueue(id)
return state
