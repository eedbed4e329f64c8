-- Appends one frame if it follows the last sequence number of its source; all or nothing, in one step.
-- KEYS: frames stream, last_seq hash, sources hash.  ARGV: source, first, last, message bytes, SourceInfo JSON.
-- Answers {1, stream id} stored, {0, last} duplicate, {-1, expected} gap or partial overlap.
-- Written for Redis 6.2. Numbers are exact: the gateway refuses sequence numbers beyond 2^53.
local last = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
if tonumber(ARGV[3]) <= last then return {0, last} end
if tonumber(ARGV[2]) ~= last + 1 then return {-1, last + 1} end
local id = redis.call('XADD', KEYS[1], '*', 's', ARGV[1], 'a', ARGV[2], 'z', ARGV[3], 'b', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
if last == 0 then redis.call('HSET', KEYS[3], ARGV[1], ARGV[5]) end
return {1, id}
