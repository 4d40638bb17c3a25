-- Sessions: who is alive, and how they are told something.

-- How many listen on a session's own channel (R13). Never what PUBLISH returns: it counts bystanders
-- with a pattern, too.
local function subscribers(id)
  local count = listeners[id]
  if not count then
    count = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. id)[2]
    listeners[id] = count
  end
  return count
end

-- One field of a message: its length, a colon, its bytes (R12). `message.rs` reads it.
local function field(text)
  return #text .. ':' .. text
end

local function number(value)
  return field(format('%.0f', value))
end

-- A message that cannot be published is one that was not delivered, which may happen to any (R12).
local function tell(id, kind, text)
  try('PUBLISH', 'lockwarden:session:' .. id, 1 --[[SCHEMA]] .. kind .. text)
end
