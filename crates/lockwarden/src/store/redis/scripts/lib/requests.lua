-- Requests for several names that wait (R29): a sorted set of tokens by the time (us) of their coming, and a hash of
-- requests by token. Both expire together, 60 s after the last recheck of any.
--
-- request  packed: schema, session, deadline (us; -1: none), since (us), when it is forgotten (us), party, its keys,
--          their companions' tails ('': the plain form)

-- By prefix, as meta.
local request_order = 'lockwarden:requests' .. sub(KEYS[1], 16)
local request_texts = 'lockwarden:requested' .. sub(KEYS[1], 16)

local function know_tails(keys, its_tails)
  for n = 1, #keys do
    if its_tails[n] ~= '' then
      tails[keys[n]] = its_tails[n]
    end
  end
end

-- The request of this token, or nil: there is none, or it is forgotten by now.
local function request_of(token)
  local text = call('HGET', request_texts, token)
  if not text then
    return nil
  end
  local it = { token = token }
  local schema, its_tails
  schema, it.session, it.deadline, it.since, it.expires, it.party, it.keys, its_tails = unpack_packed(text)
  known_schema(schema)
  know_tails(it.keys, its_tails)
  return it.expires > now and it or nil
end

local function forget_request(token)
  try('ZREM', request_order, token)
  try('HDEL', request_texts, token)
end

local function keep_request(it)
  local its_tails = {}
  for n = 1, #it.keys do
    its_tails[n] = tails[it.keys[n]] or ''
  end
  try('ZADD', request_order, it.since, it.token)
  try('HSET', request_texts, it.token, pack(1 --[[SCHEMA]], it.session, it.deadline, it.since, it.expires, it.party,
    it.keys, its_tails))
  try('PEXPIRE', request_order, 60000 --[[QUEUE_TTL_MS]])
  try('PEXPIRE', request_texts, 60000 --[[QUEUE_TTL_MS]])
end

-- The request whose names are kept for it: of those that live and are in time, the one that came first; or nil.
local function kept_for()
  -- Without queues there is none; and a self-test changes nothing of others (R10).
  if queues_until <= now or run == '' then
    return nil
  end
  for _ = 1, 64 --[[DROPS_PER_COMMAND]] do
    local token = call('ZRANGE', request_order, 0, 0)[1]
    if not token then
      return nil
    end
    local it = request_of(token)
    if it and lives(it) then
      return it
    end
    -- Its tickets are dropped where they are met.
    forget_request(token)
  end
  return nil
end

-- Is the lock kept for another request than that of the token, and came that before it?
local function is_kept(token)
  local it = kept_for()
  local rank = it and it.token ~= token and call('ZRANK', companion('queue'), it.token)
  if not rank then
    return false
  end
  local own = call('ZRANK', companion('queue'), token)
  return not own or rank < own
end

-- Is this key free, and nobody ahead of the request in its queue in the way?
local function is_open_to(request)
  if value() then
    return false
  end
  local count = waits[key] ~= false and (call('ZRANK', companion('queue'), request.token)
    or call('ZCARD', companion('queue'))) or 0
  -- More than are looked at are too many.
  if count >= 64 --[[DROPS_PER_COMMAND]] then
    return false
  end
  local tokens, texts = {}, {}
  if count > 0 then
    tokens, texts = places(0, count - 1)
  end
  for n = 1, #tokens do
    local it = texts[n] and ticket_of(tokens[n], texts[n])
    if it and lives(it) then
      local kept = it.several and kept_for()
      if not it.several or (kept and kept.token == it.token) then
        return false
      end
    end
  end
  return true
end

-- Are all keys of a request free, but for this one, which is anyway? What cannot be read is not.
local function can_serve(request)
  local here = key
  local can = true
  for n = 1, #request.keys do
    key = request.keys[n]
    if key ~= here then
      local ok, is_open = pcall(is_open_to, request)
      if not (ok and is_open) then
        can = false
        break
      end
    end
  end
  key = here
  return can
end
