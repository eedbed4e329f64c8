-- Makes a command of an order that waited, if the caller owns the run and nobody took the order back.
-- KEYS: owner, orders, commands.  ARGV: the caller's token, the number of its newest write that had an answer, the
-- number of this one; name of the order, command id, command as JSON.
-- Answers 1, also where this has happened before; 0 where the order was taken back; -1 where somebody else owns the run,
-- or Redis has lost a write of its owner (or this one comes late).
-- Written for Redis 6.2.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return -1 end
local written = tonumber(redis.call('HGET', KEYS[1], 'written') or '0')
if written < tonumber(ARGV[2]) or written >= tonumber(ARGV[3]) then return -1 end
if redis.call('HDEL', KEYS[2], ARGV[4]) == 1 then
  redis.call('HSET', KEYS[3], ARGV[5], ARGV[6])
elseif redis.call('HEXISTS', KEYS[3], ARGV[5]) == 0 then
  return 0
end
redis.call('HSET', KEYS[1], 'written', ARGV[3])
return 1
