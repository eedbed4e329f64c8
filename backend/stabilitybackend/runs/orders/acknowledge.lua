-- Stores who acknowledged an incident for whoever owns the run next, and notes it for an owner that has just come.
-- KEYS: acknowledged, reports.  ARGV: incident id, the acknowledgement as JSON, how many reports are kept.
-- Answers nothing. The first one who acknowledges an incident counts.
-- Written for Redis 6.2.
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1 then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'o', ARGV[1])
end
return false
