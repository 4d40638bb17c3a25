-- Writes one string key, unless a newer fence has been seen there (G2). Redis 4.0 and later.
-- KEYS       the key; the key of its newest fence (in the same slot)
-- arguments  fence; how long the fence is kept in ms, 0: for ever; 'set' or 'delete'; value; the value's
--            expiry in ms, 0: none
-- reply      code; newest fence; in words what is wrong, or ''
-- codes      1 PASSED, 2 STALE, 3 UNFIT (a key holds something else), 4 INVALID (an argument)
-- Everything is read and checked before the first write. The fence is written first: were the second
-- write refused (rights), a fence without its value does no harm, a value without its fence would.

-- Numbers are doubles here. Up to 2^53 - 1 they are exact; above it, or longer, nothing is let in.
local function whole(text)
  if type(text) == 'string' and #text <= 16 and string.find(text, '^%d+$') then
    local number = tonumber(text)
    if number <= 9007199254740991 --[[MAX_FENCE]] then
      return number
    end
  end
  return nil
end

local function set(key, value, expiry_ms)
  if expiry_ms > 0 then
    redis.call('SET', key, value, 'PX', string.format('%.0f', expiry_ms))
  else
    redis.call('SET', key, value)
  end
end

-- What is written is what replicas and append-only files get, with the moment of expiry (R12).
if redis.replicate_commands then
  redis.replicate_commands()
end

local fence, keep_ms, what, value, expiry_ms = whole(ARGV[1]), whole(ARGV[2]), ARGV[3], ARGV[4], whole(ARGV[5])
if not fence or fence == 0 then
  return { 4 --[[INVALID]], 0, 'fence' }
end
-- A hundred years: a longer expiry overflows in the server.
if not keep_ms or keep_ms > 3153600000000 --[[MAX_MS]] then
  return { 4 --[[INVALID]], 0, 'how long the fence is kept' }
end
if what ~= 'set' and what ~= 'delete' then
  return { 4 --[[INVALID]], 0, 'set or delete' }
end
if not expiry_ms or expiry_ms > 3153600000000 --[[MAX_MS]] then
  return { 4 --[[INVALID]], 0, 'expiry' }
end
if what == 'set' and keep_ms > 0 and (expiry_ms == 0 or expiry_ms > keep_ms) then
  return { 4 --[[INVALID]], 0, 'the fence must be kept for as long as the value' }
end
if not value then
  return { 4 --[[INVALID]], 0, 'value' }
end
-- Such values are locks, see below.
if string.sub(value, 1, 11) == 'lockwarden:' then
  return { 4 --[[INVALID]], 0, 'value: begins with lockwarden:' }
end

local fence_type = redis.call('TYPE', KEYS[2]).ok
if fence_type ~= 'none' and fence_type ~= 'string' then
  return { 3 --[[UNFIT]], 0, 'a ' .. fence_type .. ' is in the place of its fence' }
end
local text = redis.call('GET', KEYS[2])
local newest = text and whole(text) or 0
if text and newest == 0 then
  return { 3 --[[UNFIT]], 0, 'what is in the place of its fence is no fence' }
end
if fence < newest then
  return { 2 --[[STALE]], newest, '' }
end
local key_type = redis.call('TYPE', KEYS[1]).ok
if key_type ~= 'none' and key_type ~= 'string' then
  return { 3 --[[UNFIT]], newest, 'it holds a ' .. key_type }
end
-- A lock whose name is the resource's key: to write here would take it from its holder.
if redis.call('GETRANGE', KEYS[1], 0, 10) == 'lockwarden:' then
  return { 3 --[[UNFIT]], newest, 'it is a lock; give the lock a name or a prefix of its own' }
end

set(KEYS[2], string.format('%.0f', fence), keep_ms)
if what == 'set' then
  set(KEYS[1], value, expiry_ms)
else
  redis.call('DEL', KEYS[1])
end
return { 1 --[[PASSED]], fence, '' }
