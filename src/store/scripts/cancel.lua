-- cancel: ends a pending message without publishing it.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] lapsed  HASH, id -> how often its lease has lapsed
-- KEYS[3] keys    HASH, x-delay-key -> id
-- KEYS[4] payload STRING of this id
-- ARGV[1] id, 16 bytes
-- ARGV[2] '' or 'k' .. the message's own x-delay-key
-- Returns 'cancelled' (it was never claimed, and is gone), 'lapsed' (it was claimed once, may be out, and is gone),
-- 'claimed' (somebody holds it now; nothing was changed) or 'unknown' (there is no such message)
--
-- Why a claimed one is left: its holder may have it on the wire.
-- Works at maxmemory: it only removes.
-- A crash before costs nothing; after it, with the reply lost, a second call hears 'unknown'.
if redis.call('EXISTS', KEYS[4]) == 0 then
  return 'unknown'
end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return 'claimed'
end
local lapsed = redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1
-- Keys of the wrong type must fail here, before the first write: Redis rolls nothing back.
local named = ARGV[2] ~= '' and redis.call('HGET', KEYS[3], string.sub(ARGV[2], 2)) == ARGV[1]

redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('UNLINK', KEYS[4])
redis.call('HDEL', KEYS[2], ARGV[1])
if named then
  redis.call('HDEL', KEYS[3], string.sub(ARGV[2], 2))
end
return lapsed and 'lapsed' or 'cancelled'
