-- Changes the list of a run's parts, and trims its stream to what they do not hold; all or nothing.
-- KEYS: owner, parts, garbage, parts_next, frames.
-- ARGV: the caller's token; the number of its newest write that had an answer, that of this one; smallest stream id that
-- stays ('' all); how many stems the caller takes for listed, and they; how many stems go, and they; for each part that
-- comes: stem and JSON.
-- Answers {1}, {0} where somebody else owns the run or Redis has lost a write of its owner, {-1, listed} where other
-- parts are listed, {-2, stem} where files of a new part are no longer noted: somebody may have removed them.
-- Written for Redis 6.2.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {0} end
local written = tonumber(redis.call('HGET', KEYS[1], 'written') or '0')
if written < tonumber(ARGV[2]) or written >= tonumber(ARGV[3]) then return {0} end
local count = tonumber(ARGV[5])
local known = {}
for i = 6, 5 + count do known[ARGV[i]] = true end
local listed = redis.call('HKEYS', KEYS[2])
if #listed ~= count then return {-1, #listed} end
for _, stem in ipairs(listed) do
  if not known[stem] then return {-1, #listed} end
end
local gone = 6 + count
local new = gone + 1 + tonumber(ARGV[gone])
for i = new, #ARGV, 2 do
  if not known[ARGV[i]] and redis.call('SISMEMBER', KEYS[3], ARGV[i]) == 0 then return {-2, ARGV[i]} end
end
redis.call('HSET', KEYS[1], 'written', ARGV[3])
for i = gone + 1, new - 1 do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('SADD', KEYS[3], ARGV[i])
end
for i = new, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('SREM', KEYS[3], ARGV[i])
end
if ARGV[4] ~= '' then redis.call('XTRIM', KEYS[5], 'MINID', ARGV[4]) end
redis.call('DEL', KEYS[4])
return {1}
