-- settle: ends messages whose publish was confirmed. Only the exact member of the lease set lets go of a payload.
--
-- KEYS[1] lease   ZSET, member = id .. token .. due as 16 digits
-- KEYS[2] lapsed  HASH, id -> how often its lease has lapsed
-- KEYS[3] keys    HASH, x-delay-key -> id
-- KEYS[4...] payload STRING of each id
-- ARGV[1...] for each payload: member, then '' or 'k' .. x-delay-key
-- Returns for each payload 1 (settled), 2 (nothing of it is left: settled before) or 0 (the lease was not held)
--
-- Why an answer 2: when a reply is lost the caller asks again, and must not take its own success for a lost lease.
-- A lease that has lapsed but was not reaped is still held: nobody else can have it.
-- Works at maxmemory: it only removes.
-- A crash before costs a duplicate (the lease lapses, the message is published again); after, nothing.
-- Keys of the wrong type must fail here, before the first write: Redis rolls nothing back.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])

local reply = {}
for i = 4, #KEYS do
  local member = ARGV[2 * (i - 4) + 1]
  local named = ARGV[2 * (i - 4) + 2]
  if redis.call('ZREM', KEYS[1], member) == 1 then
    local id = string.sub(member, 1, 16)
    redis.call('UNLINK', KEYS[i])
    redis.call('HDEL', KEYS[2], id)
    -- The key may name a newer message by now; that one's entry stays.
    if named ~= '' and redis.call('HGET', KEYS[3], string.sub(named, 2)) == id then
      redis.call('HDEL', KEYS[3], string.sub(named, 2))
    end
    reply[#reply + 1] = 1
  elseif redis.call('EXISTS', KEYS[i]) == 0 then
    reply[#reply + 1] = 2
  else
    reply[#reply + 1] = 0
  end
end
return reply
