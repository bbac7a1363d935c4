-- reschedule: gives a pending message another due time, counted from now.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] lapsed  HASH, id -> how often its lease has lapsed
-- KEYS[3] payload STRING of this id
-- ARGV[1] id, 16 bytes
-- ARGV[2] how long to wait, in ms
-- Returns {'moved', due}, {'claimed', ''} (it is or was claimed and may be out; nothing was changed) or {'unknown', ''}
--
-- Works at maxmemory: Redis asks for room only at the first write of a script, and that is a ZREM.
-- A crash before costs nothing; after it a second call counts its wait from that call.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.ceil(time[2] / 1000)
if redis.call('EXISTS', KEYS[3]) == 0 then
  return {'unknown', ''}
end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return {'claimed', ''}
end
local due = string.format('%.0f', now + ARGV[2])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], due, ARGV[1])
return {'moved', due}
