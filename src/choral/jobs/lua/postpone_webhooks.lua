-- ARGV: delay_s, id, …
-- Release leased webhooks that were not sent: they become due after the delay.
for i = 2, #ARGV do
  redis.call('ZADD', webhooks_key, 'XX', now + tonumber(ARGV[1]), ARGV[i])
end
return 'stored'
