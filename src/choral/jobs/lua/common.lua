-- Prepended to every script, after the key names. KEYS[1] is the prefix of all keys.
-- All times are those of Redis, so that clocks of different machines are never compared.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local ENDED = {succeeded = true, failed = true, dead = true, cancelled = true}
local MAX_EVENTS = 10000

local function publish(id, state)
  redis.call('XADD', events_key, 'MAXLEN', '~', MAX_EVENTS, '*', 'id', id, 'state', state)
end

local function remove_expired()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', expiries_key, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', expiries_key, id)
    redis.call('ZREM', index_key, id)
    redis.call('ZREM', dead_key, id)
  end
end

local function enqueue(id)
  local job = job_key(id)
  local queue = queue_key(redis.call('HGET', job, 'priority'))
  local entry = redis.call('XADD', queue, '*', 'id', id)
  redis.call('HSET', job, 'state', 'queued', 'entry', entry, 'queued_at', now, 'done_s', 0)
  redis.call('HDEL', job, 'worker', 'phase', 'due_at')
  publish(id, 'queued')
end

local function dequeue(id)
  local job = redis.call('HMGET', job_key(id), 'priority', 'entry')
  if job[2] then
    redis.call('XACK', queue_key(job[1]), GROUP, job[2])
    redis.call('XDEL', queue_key(job[1]), job[2])
  end
  redis.call('ZREM', delayed_key, id)
end

-- End a job: take it out of the queue, schedule its expiry, and schedule its webhook once.
local function finish(id, state)
  local job = job_key(id)
  dequeue(id)
  redis.call('HSET', job, 'state', state, 'ended_at', now)
  redis.call('HDEL', job, 'entry', 'phase', 'due_at', 'cancel')
  local keep_s = tonumber(redis.call('HGET', job, 'keep_s'))
  redis.call('EXPIRE', job, keep_s)
  redis.call('ZADD', expiries_key, now + keep_s, id)
  if state == 'dead' then
    redis.call('ZADD', dead_key, now, id)
  end
  if redis.call('HEXISTS', job, 'callback') == 1 and redis.call('HSETNX', job, 'webhook', 'pending') == 1 then
    redis.call('ZADD', webhooks_key, now, id)
  end
  publish(id, state)
  remove_expired()
end

-- Whether this worker still holds the job: another may have claimed it.
local function is_leased_to(id, worker)
  local job = redis.call('HMGET', job_key(id), 'state', 'worker')
  return job[1] == 'running' and job[2] == worker
end
