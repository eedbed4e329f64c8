-- Stores an order for whoever owns the run next, once, and notes it in the audit and for an owner that has just come.
-- KEYS: orders, reports, command_audit.
-- ARGV: name of the order, the order and its command as JSON, how many reports are kept.
-- Answers nothing, or the order that was stored under this name before.
-- Written for Redis 6.2.
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return redis.call('HGET', KEYS[1], ARGV[1]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'o', ARGV[1])
redis.call('XADD', KEYS[3], '*', 'c', ARGV[3])
return false
