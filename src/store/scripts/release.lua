-- release: gives back claimed messages that were not published. They are due again as they were, without a mark.
--
-- KEYS[1] due     ZSET, score = due in ms, member = id
-- KEYS[2] lease   ZSET, member = id .. token .. due as 16 digits
-- ARGV[1...] members
-- Returns for each member 1 (given back) or 0 (the lease was not held)
--
-- Why no mark in the lapsed hash: the holder vouches that no publish was begun, so a cancel may still say "cancelled".
-- Works at maxmemory: Redis asks for room only at the first write of a script, and that is a ZREM.
-- A crash before costs the rest of the lease; after, nothing.
-- A due set of the wrong type must fail here, before the first write: Redis rolls nothing back.
redis.call('ZCARD', KEYS[1])

local reply = {}
for i = 1, #ARGV do
  local member = ARGV[i]
  local held = redis.call('ZREM', KEYS[2], member)
  if held == 1 then
    redis.call('ZADD', KEYS[1], string.format('%.0f', tonumber(string.sub(member, 33))), string.sub(member, 1, 16))
  end
  reply[#reply + 1] = held
end
return reply
