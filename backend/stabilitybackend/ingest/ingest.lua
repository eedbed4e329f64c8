-- Appends frames of one run, each if it follows the last sequence number of its source; each all or nothing.
-- KEYS: frames stream, last_seq hash, sources hash.  ARGV, five a frame: source, first, last, message bytes, SourceInfo JSON.
-- Answers for each frame {1, stream id} stored, {0, last} duplicate, {-1, expected} gap or partial overlap.
-- Written for Redis 6.2. Numbers are exact: the gateway refuses sequence numbers beyond 2^53.
local answers, newest = {}, {}
for at = 1, #ARGV, 5 do
  local source, final = ARGV[at], tonumber(ARGV[at + 2])
  local last = newest[source] or tonumber(redis.call('HGET', KEYS[2], source) or '0')
  local answer
  if final <= last then
    answer = {0, last}
  elseif tonumber(ARGV[at + 1]) ~= last + 1 then
    answer = {-1, last + 1}
  else
    local id = redis.call('XADD', KEYS[1], '*', 's', source, 'a', ARGV[at + 1], 'z', ARGV[at + 2], 'b', ARGV[at + 3])
    -- At once and not at the end: a later frame may fail (no memory), and what is stored must be counted.
    redis.call('HSET', KEYS[2], source, ARGV[at + 2])
    if last == 0 then redis.call('HSET', KEYS[3], source, ARGV[at + 4]) end
    last = final
    answer = {1, id}
  end
  newest[source] = last
  answers[#answers + 1] = answer
end
return answers
