-- The top of every script. Names of keys come before this; KEYS[1] is the prefix of them all.
-- Times are those of Redis, so that no two machines' clocks are ever compared.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local ENDED = {succeeded = true, failed = true, dead = true, cancelled = true}
local MOST_EVENTS = 10000

local function tell(id, state)
  redis.call('XADD', events_key, 'MAXLEN', '~', MOST_EVENTS, '*', 'id', id, 'state', state)
end

local function forget_expired()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', expiries_key, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', expiries_key, id)
    redis.call('ZREM', index_key, id)
    redis.call('ZREM', dead_key, id)
  end
end

local function enter_queue(id)
  local job = job_key(id)
  local queue = queue_key(redis.call('HGET', job, 'priority'))
  local entry = redis.call('XADD', queue, '*', 'id', id)
  redis.call('HSET', job, 'state', 'queued', 'entry', entry, 'queued_at', now, 'done_s', 0)
  redis.call('HDEL', job, 'worker', 'phase', 'due_at')
  tell(id, 'queued')
end

local function leave_queue(id)
  local place = redis.call('HMGET', job_key(id), 'priority', 'entry')
  if place[2] then
    redis.call('XACK', queue_key(place[1]), GROUP, place[2])
    redis.call('XDEL', queue_key(place[1]), place[2])
  end
  redis.call('ZREM', delayed_key, id)
end

-- The end of a job: out of the queue, on the lists that remember it, and its webhook planned, once.
local function finish(id, state)
  local job = job_key(id)
  leave_queue(id)
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
  tell(id, state)
  forget_expired()
end

-- Whether this worker has the job: another may have claimed it in the meantime.
local function is_with(id, worker)
  local found = redis.call('HMGET', job_key(id), 'state', 'worker')
  return found[1] == 'running' and found[2] == worker
end
