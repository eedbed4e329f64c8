-- Appends messages of one run, each if all its sources follow their last sequence numbers; each all or nothing.
-- KEYS: frames stream, last_seq hash, sources hash, owner.  ARGV: the stream id that a follower beside the caller has, '' where
-- there is none; then for each message: its bytes, and as MessagePack a list that has four strings for each of its sources:
-- source, first, last, SourceInfo JSON. One argument, since a client spends more on packing thirty than on the message.
-- Answers for each message {1, stream id} stored, or what keeps it: {0, last} duplicate, {-1, expected} gap or partial
-- overlap, {-2} where it has several sources and not all of them are duplicates.
-- The last answer is {worker, why, follows}: who owns the run, and why it takes nothing now, '' where nobody does or it does; 1
-- where what is stored follows that stream id directly, which is the newest entry that the stream holds.
-- Written for Redis 6.2. Numbers are exact: the gateway refuses sequence numbers beyond 2^53.
local answers, newest = {}, {}
local follows = 0
if ARGV[1] ~= '' then
  local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 2)
  if #found == 1 and found[1][1] == ARGV[1] then follows = 1 end
end
local at = 2
while at <= #ARGV do
  local sources = cmsgpack.unpack(ARGV[at + 1])
  local count = #sources / 4
  local behind, gap, number = 0, false, 0
  for i = 1, #sources, 4 do
    local source = sources[i]
    local last = newest[source] or tonumber(redis.call('HGET', KEYS[2], source) or '0')
    newest[source] = last
    if tonumber(sources[i + 2]) <= last then
      behind, number = behind + 1, last
    elseif tonumber(sources[i + 1]) ~= last + 1 then
      gap, number = true, last + 1
    end
  end
  if behind == count then
    answers[#answers + 1] = {0, number}
  elseif gap and count == 1 then
    answers[#answers + 1] = {-1, number}
  elseif gap or behind > 0 then
    answers[#answers + 1] = {-2}
  else
    local id
    if count == 1 then
      id = redis.call('XADD', KEYS[1], '*', 's', sources[1], 'a', sources[2], 'z', sources[3], 'b', ARGV[at])
    else
      id = redis.call('XADD', KEYS[1], '*', 'b', ARGV[at])
    end
    -- At once and not at the end: a later message may fail (no memory), and what is stored must be counted.
    for i = 1, #sources, 4 do
      local source = sources[i]
      redis.call('HSET', KEYS[2], source, sources[i + 2])
      if newest[source] == 0 then redis.call('HSET', KEYS[3], source, sources[i + 3]) end
      newest[source] = tonumber(sources[i + 2])
    end
    answers[#answers + 1] = {1, id}
  end
  at = at + 2
end
local owner = redis.call('HMGET', KEYS[4], 'worker', 'full')
answers[#answers + 1] = {owner[1] or '', owner[2] or '', follows}
return answers
