-- claim: takes what is due under a lease. The ids leave the due set and enter the lease set in one step, so that two
-- claimers never share one.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] lease   ZSET, score = when the lease lapses in ms, member = id .. token .. due as 16 digits
-- KEYS[3] lapsed  HASH, id -> how often its lease has lapsed
-- ARGV[1] token, 16 bytes
-- ARGV[2] lease in ms
-- ARGV[3] ids at most (1000: a script of that size takes about 4 ms, and nobody else is served meanwhile)
-- Returns {now in ms, earliest due that is left in ms or '', id, due, lapses, id, due, lapses, ...}, earliest due first,
-- and among equal due times the lowest id first, which is first in first out (UUIDv7).
--
-- Why floor: due is what lies at or before the beginning of this millisecond; never early.
-- Why the due time is in the member: it survives the claim without a second structure, and who settles must name the
-- exact member, which only the holder of the token can.
-- Why payloads are not returned: their keys could not be declared. The caller fetches them.
-- Works at maxmemory: Redis asks for room only at the first write of a script, and that is a ZREM.
-- A crash before costs nothing. After, or when the reply is lost: the leases lapse and reap makes the ids due again.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
-- Keys of the wrong type must fail here, before the first write: Redis rolls nothing back.
redis.call('ZCARD', KEYS[2])
local some_lapsed = redis.call('HLEN', KEYS[3]) > 0

local lapses_at = string.format('%.0f', now + ARGV[2])
local reply = {string.format('%.0f', now), ''}
for i = 1, #found, 2 do
  local id = found[i]
  local due = string.format('%016.0f', math.ceil(tonumber(found[i + 1])))
  local lapses = some_lapsed and redis.call('HGET', KEYS[3], id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], lapses_at, id .. ARGV[1] .. due)
  reply[#reply + 1] = id
  reply[#reply + 1] = due
  reply[#reply + 1] = lapses or '0'
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
reply[2] = first[2] or ''
return reply
