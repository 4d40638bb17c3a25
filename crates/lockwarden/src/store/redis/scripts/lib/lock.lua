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

-- The key's value, or false. An error if the key holds something that is no string.
local function value()
  local known = values[key]
  if not known and not certain[key] then
    known = call('GET', key)
    values[key], certain[key] = known, true
  end
  return known
end

local function known_schema(schema)
  if schema ~= 1 --[[SCHEMA]] then
    error('LOCKWARDEN another schema: ' .. tostring(schema))
  end
end

-- What a packed record says. An error if it is none.
local function record_of(text)
  local it = {}
  local schema
  schema, it.session, it.token, it.fence, it.revoked, it.lease, it.run, it.proof, it.since, it.grace,
    it.party = unpack_packed(text)
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
  if not text then
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
    if found[n] or all_free then
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

-- The token by which the lock is held, or false.
local function holder()
  local it = record()
  return it and it.token or value()
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

-- Writes a grant to a ticket; the fence grows with every one of them, per name and in all (R34). Locks that are granted
-- together have one fence.
local function grant(it, keys)
  local new_fence = fence + 1
  if now > new_fence then
    new_fence = now
  end
  if it.floor >= new_fence then
    new_fence = it.floor + 1
  end
  it.fence, it.revoked, it.run, it.since = new_fence, 0, short_run, now
  local here = key
  for n = 1, #keys do
    key = keys[n]
    write(it, it.lease)
  end
  key = here
  -- Not before it is written: without memory it is not (R12).
  fence, fence_grew = new_fence, true
  return new_fence
end

-- Deletes the holder; `free` also hands on.
local function delete()
  call('DEL', key, companion('record'))
  values[key], records[key], certain[key] = false, false, true
end

-- Sets the whole lease of the present holder, and writes what it results in (R15). `it`: its record,
-- if one counts.
local function extend(lease, it)
  -- First, for it needs no memory, and what follows a write is not refused for the lack of it.
  expire_in(lease, it)
  if it and (it.lease ~= lease or it.run ~= short_run) then
    it.lease, it.run = lease, short_run
    write(it, lease)
  end
end

local function absence()
  return value() and 1 --[[TAKEN]] or 0 --[[FREE]]
end

-- May the caller renew or release by this token? Not if the record says that another session holds it
-- (R25). A key without a counting record is anyone's who knows its value.
local function owns(token)
  if holder() ~= token then
    return false
  end
  local it = record()
  return not it or it.session == session, it
end
