-- Changes the list of a run's parts, and trims its stream to what they do not hold; all or nothing.
-- KEYS: owner, parts, garbage, parts_next, frames.
-- ARGV: the caller's token; smallest stream id that stays ('' all); how many stems the caller takes for listed, and
-- they; how many stems go, and they; for each part that comes: stem and JSON.
-- Answers {1}, {0} where somebody else owns the run, {-1, listed} where other parts are listed, {-2, stem} where files
-- of a new part are no longer noted: somebody may have removed them.
-- Written for Redis 6.2.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {0} end
local count = tonumber(ARGV[3])
local known = {}
for i = 4, 3 + count do known[ARGV[i]] = true end
local listed = redis.call('HKEYS', KEYS[2])
if #listed ~= count then return {-1, #listed} end
for _, stem in ipairs(listed) do
  if not known[stem] then return {-1, #listed} end
end
local gone = 4 + count
local new = gone + 1 + tonumber(ARGV[gone])
for i = new, #ARGV, 2 do
  if not known[ARGV[i]] and redis.call('SISMEMBER', KEYS[3], ARGV[i]) == 0 then return {-2, ARGV[i]} end
end
for i = gone + 1, new - 1 do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('SADD', KEYS[3], ARGV[i])
end
for i = new, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('SREM', KEYS[3], ARGV[i])
end
if ARGV[2] ~= '' then redis.call('XTRIM', KEYS[5], 'MINID', ARGV[2]) end
redis.call('DEL', KEYS[4])
return {1}
