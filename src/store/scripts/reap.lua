-- reap: makes messages due again whose lease has lapsed, at their old due time, and marks each.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] lease   ZSET, score = when the lease lapses in ms, member = id .. token .. due as 16 digits
-- KEYS[3] lapsed  HASH, id -> how often its lease has lapsed
-- ARGV[1] ids at most
-- Returns how many became due again
--
-- Why the mark: a holder that died may have published first, so from here on nobody can promise that the message was
-- never out (cancel, replace by key), and consumers are told that it may be a copy.
-- Works at maxmemory: Redis asks for room only at the first write of a script, and that is a ZREM.
-- A crash before or after costs nothing: any daemon reaps.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Strictly before: a lease of 30 s lasts 30 s to the end of its last millisecond.
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
-- Keys of the wrong type must fail here, before the first write: Redis rolls nothing back.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[3])

local reaped = 0
for i = 1, #found do
  local member = found[i]
  local id = string.sub(member, 1, 16)
  local due = tonumber(string.sub(member, 33))
  -- A member of another form was put there by hand; what it means cannot be known, and it is left alone.
  if #member == 48 and due then
    -- tonumber: HINCRBY would fail on a value that a hand has changed, after the first write.
    local lapses = (tonumber(redis.call('HGET', KEYS[3], id) or '0') or 0) + 1
    redis.call('ZREM', KEYS[2], member)
    redis.call('ZADD', KEYS[1], string.format('%.0f', due), id)
    redis.call('HSET', KEYS[3], id, string.format('%.0f', lapses))
    reaped = reaped + 1
  end
end
return reaped
