-- park: stores one message until it is due. Idempotent by id.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] keys    HASH, x-delay-key -> id
-- KEYS[3] lapsed  HASH, id -> how often its lease has lapsed
-- KEYS[4] payload STRING of this id
-- KEYS[5] payload STRING of the id that the key names; only with ARGV[6] ~= ''
-- ARGV[1] id, 16 bytes
-- ARGV[2] how long to wait, in ms
-- ARGV[3] record
-- ARGV[4] 'written' if this server has written it before and must have it, else ''
-- ARGV[5] x-delay-key; absent for a message without one
-- ARGV[6] the id that the caller read under that key, or ''; absent with ARGV[5]
-- Returns {'parked', due, replaced id or ''}, {'already', due, ''}, {'gone', now, ''}, or
-- {'changed', '', id that the key names now or ''}; the last two have written nothing
--
-- Why the caller names the old id: its payload must be in KEYS for Redis Cluster, so it is read before. If the key
-- names another by now nothing is written and the caller tries again with what it names.
-- Why 'gone': what was written and is not there any more was released, cancelled or replaced since. Written again it would
-- come out again.
-- Why ceil and not floor: a wait counts from the moment of arrival, whose part of a millisecond must not be taken off.
-- Only this verb may fail for want of memory: its first write is the one that may, and nothing is written then.
-- A crash before costs nothing (the broker still holds the message); after, the caller parks again and hears 'already'.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.ceil(time[2] / 1000)

if redis.call('EXISTS', KEYS[4]) == 1 then
  local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
  -- Changes no byte, but is a write: the caller's WAITAOF or WAIT covers only what its own connection has written, and
  -- the first park may have come by a connection that is gone.
  redis.call('APPEND', KEYS[4], '')
  -- Without a score it is claimed, so it was due already.
  return {'already', at or string.format('%.0f', now), ''}
end

if ARGV[4] == 'written' then
  return {'gone', string.format('%.0f', now), ''}
end

local key = ARGV[5]
local old = false
if key then
  old = redis.call('HGET', KEYS[2], key)
  if (old or '') ~= ARGV[6] then
    return {'changed', '', old or ''}
  end
end
-- What was ever claimed may be out already: it is left to its claim, and the new one stands beside it.
local replace = old and redis.call('ZSCORE', KEYS[1], old) and redis.call('HEXISTS', KEYS[3], old) == 0
-- A due set of the wrong type must fail here, before the first write: Redis rolls nothing back.
redis.call('ZCARD', KEYS[1])

local due = string.format('%.0f', now + ARGV[2])
redis.call('SET', KEYS[4], ARGV[3])
redis.call('ZADD', KEYS[1], due, ARGV[1])
if key then
  redis.call('HSET', KEYS[2], key, ARGV[1])
end
if replace then
  redis.call('ZREM', KEYS[1], old)
  redis.call('UNLINK', KEYS[5])
  return {'parked', due, old}
end
return {'parked', due, ''}
