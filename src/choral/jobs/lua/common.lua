-- Prepended to every script, after the key names and the constants of job_states.py. KEYS[1] is the prefix of all keys.
-- All times are those of Redis, so that clocks of different machines are never compared.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local MAX_EVENTS = 10000
local MAX_SUBMIT_SHARE = 0.9 -- of maxmemory; the rest is for results and bookkeeping of jobs that are queued already
local MIN_KEEP_S, MAX_KEEP_S = 1, 3650 * 86400 -- of ended jobs, whatever their records say

-- Refusal of a submit that would fill Redis beyond its share; nil if there is memory for `n_bytes` more.
local function refuse_without_memory(n_bytes)
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then
    return nil -- this user may not run INFO: Redis itself refuses at its maxmemory
  end
  local used, max = tonumber(string.match(info, 'used_memory:(%d+)')), tonumber(string.match(info, '\nmaxmemory:(%d+)'))
  if used and max and max > 0 and used + n_bytes > max * MAX_SUBMIT_SHARE then
    return redis.error_reply('OOM submits are refused at 90% of maxmemory')
  end
end

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
  local priority = redis.call('HGET', job, 'priority')
  local queue = queue_key(priority == 'interactive' and priority or 'batch') -- the record may be damaged
  local entry = redis.call('XADD', queue, '*', 'id', id)
  redis.call('HSET', job, 'state', 'queued', 'entry', entry, 'queued_at', now, 'done_s', 0)
  redis.call('HDEL', job, 'worker', 'phase', 'due_at')
  publish(id, 'queued')
end

local function dequeue(id)
  local job = redis.call('HMGET', job_key(id), 'priority', 'entry')
  if job[1] and job[2] then -- pcall: the record may be damaged, and a worker that receives the entry drops it
    redis.pcall('XACK', queue_key(job[1]), GROUP, job[2])
    redis.pcall('XDEL', queue_key(job[1]), job[2])
  end
  redis.call('ZREM', delayed_key, id)
end

local function delay(id, delay_s)
  local job = job_key(id)
  dequeue(id)
  redis.call('HDEL', job, 'entry', 'phase')
  redis.call('HSET', job, 'state', 'waiting', 'due_at', now + delay_s)
  redis.call('ZADD', delayed_key, now + delay_s, id)
  publish(id, 'waiting')
end

local function expire(id, keep_s)
  keep_s = math.min(math.max(MIN_KEEP_S, math.ceil(keep_s)), MAX_KEEP_S)
  redis.call('EXPIRE', job_key(id), keep_s)
  redis.call('EXPIRE', result_key(id), keep_s)
  redis.call('ZADD', expiries_key, now + keep_s, id)
end

-- Delete the uploaded audio of a job that has ended. A dead job keeps it for some time, so that it can be retried.
local function drop_audio(id, state)
  local job = job_key(id)
  local blob = redis.call('HGET', job, 'blob')
  if state == 'dead' then
    if blob and redis.call('TTL', blob_key(blob)) > DEAD_AUDIO_S then
      redis.call('EXPIRE', blob_key(blob), DEAD_AUDIO_S)
    end
    return
  end
  if blob then
    redis.call('UNLINK', blob_key(blob))
  end
  if redis.call('HDEL', job, 'audio', 'blob') > 0 then
    redis.call('HSET', job, 'audio_deleted', 1)
  end
end

-- End a job: take it out of the queue, delete its audio, schedule its expiry, and schedule its webhook once.
local function finish(id, state)
  local job = job_key(id)
  dequeue(id)
  drop_audio(id, state)
  redis.call('HSET', job, 'state', state, 'ended_at', now)
  redis.call('HDEL', job, 'entry', 'phase', 'due_at', 'cancel')
  local keep_s = tonumber(redis.call('HGET', job, 'keep_s') or '') or WEBHOOK_KEEP_S
  if state == 'dead' then
    redis.call('ZADD', dead_key, now, id)
  end
  if redis.call('HEXISTS', job, 'callback') == 1 and redis.call('HSETNX', job, 'webhook', 'pending') == 1 then
    redis.call('ZADD', webhooks_key, now, id)
    keep_s = math.max(keep_s, WEBHOOK_KEEP_S) -- record_webhook restores keep_s
  end
  expire(id, keep_s)
  publish(id, state)
  remove_expired()
end

-- Count a run that ended together with its worker or engine. Returns whether the job is dead now.
local function count_crash(id, worker, max_crashes)
  local job = job_key(id)
  local crashes = redis.call('HINCRBY', job, 'crashes', 1)
  if crashes < tonumber(max_crashes) then
    return false
  end
  local times = crashes == 1 and 'once' or crashes .. ' times'
  redis.call('HSET', job, 'error_kind', CRASH_KIND, 'error',
    'its worker crashed or stopped responding, ' .. times .. ' (last ' .. worker .. '): see the log of that worker')
  finish(id, 'dead')
  return true
end

-- Whether this worker still holds the job: another may have claimed it. pcall: the record may be damaged.
local function is_leased_to(id, worker)
  local job = redis.pcall('HMGET', job_key(id), 'state', 'worker')
  return job[1] == 'running' and job[2] == worker
end
