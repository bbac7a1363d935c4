-- renew: lets leases last anew, counted from now.
--
-- KEYS[1] lease   ZSET, score = when the lease lapses in ms, member = id .. token .. due as 16 digits
-- ARGV[1] lease in ms
-- ARGV[2...] members
-- Returns for each member 1 (held, and renewed) or 0 (not held)
--
-- A lease that has lapsed but was not reaped is still held: nobody else can have it.
-- Works at maxmemory: Redis asks for room only at the first write of a script, and that is a ZREM.
-- A crash before or after costs nothing that a lapse does not cost anyway.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lapses_at = string.format('%.0f', now + ARGV[1])

local reply = {}
for i = 2, #ARGV do
  local held = redis.call('ZREM', KEYS[1], ARGV[i])
  if held == 1 then
    redis.call('ZADD', KEYS[1], lapses_at, ARGV[i])
  end
  reply[#reply + 1] = held
end
return reply
