-- The key of a lock and its record.
--
-- record   packed one after the other: schema, session, token, fence, revoked (0, 1), lease (ms), short
--          run, proof, since (us), grace (ms), party. What the common cases compare comes first, so that
--          they need not unpack it all.
--
-- Under a token of ours the key's value is `lockwarden:` and the record. Where the caller chose the value
-- (then there is a proof) the key has that value, and the record is a companion's.

-- The name of a companion of the lock's key, in the same slot of a Cluster (`keys.rs` chooses the form).
local function companion(kind)
  local tail = tails[key]
  return tail and 'lockwarden:' .. kind .. tail or 'lockwarden:' .. kind .. ':{' .. key .. '}'
end

-- What the key says where several hold the lock together; see `together.lua`.
local together_value = 'lockwarden:' .. char(3 --[[TOGETHER]])
local forget_over

-- The key's value, or false. An error if the key holds something that is no string.
local function value()
  local known = values[key]
  if not known and not certain[key] then
    known = call('GET', key)
    values[key], certain[key] = known, true
    if known == together_value then
      forget_over()
      known = values[key]
    end
  end
  return known
end

local function is_together()
  return value() == together_value
end

local function known_schema(schema)
  if schema ~= 1 --[[SCHEMA]] then
    error('LOCKWARDEN another schema: ' .. tostring(schema))
  end
end

-- What a packed record says; count and of are those of a share, see `together.lua`. An error if it is none.
local function record_of(text)
  local it = {}
  local schema
  schema, it.session, it.token, it.fence, it.revoked, it.lease, it.run, it.proof, it.since, it.grace,
    it.party, it.count, it.of = unpack_packed(text)
  known_schema(schema)
  for name, expected in pairs({
    session = 'string', token = 'string', fence = 'number', revoked = 'number', lease = 'number',
    run = 'string', proof = 'string', since = 'number', grace = 'number', party = 'string',
  }) do
    if type(it[name]) ~= expected then
      error('LOCKWARDEN a record without its ' .. name)
    end
  end
  -- What is not positive would delete the key (R14).
  if it.lease < 1 or it.grace < 1 or it.fence < 0 or it.since < 0 then
    error('LOCKWARDEN a record with a number out of its range')
  end
  return it
end

-- The record, if it counts (R3); else nil.
local function record()
  local it = records[key]
  if it ~= nil then
    return it or nil
  end
  local text = value()
  if not text or text == together_value then
    return nil
  end
  if sub(text, 1, 11) == 'lockwarden:' then
    local schema = byte(text, 12)
    if schema == 1 --[[SCHEMA]] then
      local ok, found = pcall(record_of, sub(text, 12))
      -- What cannot be read is what a foreign client wrote.
      it = ok and found
    elseif schema and schema < 32 then
      known_schema(schema)
    end
    it = it or false
  else
    local companion_text = call('GET', companion('record'))
    it = companion_text and record_of(companion_text)
    if it and it.token ~= text then
      it = false
    end
  end
  records[key] = it
  return it or nil
end

-- Reads what stands at many keys together. Does nothing for one.
local function look_at(keys)
  if #keys == 1 then
    return
  end
  local found = call('MGET', unpack(keys))
  -- MGET takes a key of another type for none.
  local all_free = call('EXISTS', unpack(keys)) == 0
  local queue_names = {}
  for n = 1, #keys do
    key = keys[n]
    if (found[n] and found[n] ~= together_value) or all_free then
      values[key], certain[key] = found[n], true
    end
    queue_names[n] = companion('queue')
  end
  if queues_until <= now or call('EXISTS', unpack(queue_names)) == 0 then
    for n = 1, #keys do
      waits[keys[n]] = false
    end
  end
  key = keys[1]
end

-- Writes the key with a record, to end in so many ms.
local function write(it, ttl)
  local text = pack(1 --[[SCHEMA]], it.session, it.token, it.fence, it.revoked, it.lease, it.run,
    it.proof, it.since, it.grace, it.party)
  if it.proof == '' then
    text = 'lockwarden:' .. text
    call('SET', key, text, 'PX', ttl)
    values[key] = text
  else
    call('SET', key, it.token, 'PX', ttl)
    call('SET', companion('record'), text, 'PX', ttl)
    values[key] = it.token
  end
  records[key] = it
end

-- Lets the lock end in so many ms. `it`: its record, if one counts.
local function expire_in(ttl, it)
  call('PEXPIRE', key, ttl)
  if it and it.proof ~= '' then
    call('PEXPIRE', companion('record'), ttl)
  end
end
