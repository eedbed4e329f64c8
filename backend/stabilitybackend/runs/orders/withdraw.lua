-- Takes back an order that no owner has taken yet, and notes it in the audit.
-- KEYS: orders, command_audit.  ARGV: name of the order, its command as JSON.
-- Answers 1, or 0 where an owner took it.
-- Written for Redis 6.2.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', 'c', ARGV[2])
return 1
