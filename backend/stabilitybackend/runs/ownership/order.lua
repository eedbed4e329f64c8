-- Makes a command of an order that waited, if the caller owns the run and nobody took the order back.
-- KEYS: owner, orders, commands.  ARGV: the caller's token, name of the order, command id, command as JSON.
-- Answers 1, also where this has happened before; 0 where the order was taken back, -1 where somebody else owns the run.
-- Written for Redis 6.2.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return -1 end
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then return redis.call('HEXISTS', KEYS[3], ARGV[3]) end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
return 1
