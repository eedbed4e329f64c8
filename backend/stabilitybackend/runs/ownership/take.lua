-- Makes a worker the owner of a run, if the run has none, the worker itself, or the one that the caller may replace.
-- KEYS: owner.  ARGV: token that may be replaced ('*' any, '' none), new token, worker, address.
-- Answers {epoch, token that was replaced or ''}, or {0, token, worker, address} of the owner that it has.
-- Written for Redis 6.2.
local held = redis.call('HMGET', KEYS[1], 'token', 'worker', 'address')
if held[1] and ARGV[1] ~= '*' and held[1] ~= ARGV[1] and held[2] ~= ARGV[3] then
  return {0, held[1], held[2] or '', held[3] or ''}
end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'worker', ARGV[3], 'address', ARGV[4])
redis.call('HDEL', KEYS[1], 'full', 'written')
return {epoch, held[1] or ''}
