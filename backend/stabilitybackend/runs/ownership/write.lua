-- Carries out commands on keys of one run, all of them if the caller owns the run, else none.
-- KEYS: owner, then the keys of the commands.  ARGV: the caller's token, the number of its newest write that had an
-- answer, the number of this one; then for each command: how many arguments it has after its key, its name, the place
-- of its key in KEYS, the arguments.
-- Answers 1, or 0 where somebody else owns the run, or Redis has lost a write of its owner (or this one comes late).
-- Written for Redis 6.2, which refuses a script that lacks memory before its first write, never after it.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local written = tonumber(redis.call('HGET', KEYS[1], 'written') or '0')
if written < tonumber(ARGV[2]) or written >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'written', ARGV[3])
local at = 4
while at <= #ARGV do
  local last = at + 2 + tonumber(ARGV[at])
  redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, last))
  at = last + 1
end
return 1
