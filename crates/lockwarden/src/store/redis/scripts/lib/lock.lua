-- The key of a lock and its record.
--
-- record   packed one after the other: schema, session, token, fence, revoked (0, 1), lease (ms), run,
--          proof, since (us), grace (ms), party. What the common cases compare comes first, so that
--          they need not unpack it all.

-- The name of a companion of the lock's key, in the same slot of a Cluster (`keys.rs` chooses the form).
local function companion(kind)
  if form == '' then
    return 'lockwarden:' .. kind .. ':{' .. key .. '}'
  end
  return 'lockwarden:' .. kind .. form .. key
end

-- The key's value, or false. An error if the key holds something that is no string.
local function value()
  local known = values[slot]
  if not known and not certain[slot] then
    known = call('GET', key)
    values[slot], certain[slot] = known, true
  end
  return known
end

local function known_schema(schema)
  if schema ~= 1 --[[SCHEMA]] then
    error('LOCKWARDEN another schema: ' .. tostring(schema))
  end
end

-- The record, if it counts (R3); else nil.
local function record()
  local token = value()
  if not token then
    return nil
  end
  local text = records[slot]
  if text == nil then
    text = call('GET', companion('record'))
    records[slot] = text
  end
  if not text then
    return nil
  end
  local it = {}
  local schema
  schema, it.session, it.token, it.fence, it.revoked, it.lease, it.run, it.proof, it.since, it.grace,
    it.party = unpack_packed(text)
  known_schema(schema)
  if it.token ~= token then
    return nil
  end
  return it
end

-- Writes a record anew, to end in so many ms.
local function write_record(it, ttl)
  local text = pack(1 --[[SCHEMA]], it.session, it.token, it.fence, it.revoked, it.lease, it.run,
    it.proof, it.since, it.grace, it.party)
  call('SET', companion('record'), text, 'PX', ttl)
  records[slot] = text
end

-- Writes a grant to a ticket; the fence grows with every one of them, per name and in all (R34).
local function grant(it)
  local new_fence = fence + 1
  if now > new_fence then
    new_fence = now
  end
  if it.floor >= new_fence then
    new_fence = it.floor + 1
  end
  call('SET', key, it.token, 'PX', it.lease)
  fence, fence_grew = new_fence, true
  values[slot] = it.token
  it.fence, it.revoked, it.run, it.since = new_fence, 0, meta_run, now
  write_record(it, it.lease)
  return new_fence
end

-- Deletes the holder.
local function delete()
  call('DEL', key, companion('record'))
  values[slot], records[slot], certain[slot] = false, false, true
end

-- Sets the whole lease of the present holder, and writes what it results in (R15). `it`: its record,
-- if one counts.
local function extend(lease, it)
  call('PEXPIRE', key, lease)
  if it then
    it.lease, it.run = lease, meta_run
    write_record(it, lease)
  end
end

-- Lets the key end in at most so many ms; says in how many it will. A number that is not positive must
-- never reach PEXPIRE: it would delete the key (R14).
local function shorten(most)
  local ttl = call('PTTL', key)
  if ttl >= 0 and ttl <= most then
    return ttl
  end
  call('PEXPIRE', key, most)
  return most
end

local function absence()
  return value() and 1 --[[TAKEN]] or 0 --[[FREE]]
end

-- May the caller renew or release by this token? Not if the record says that another session holds it
-- (R25). A key without a counting record is anyone's who knows its value.
local function owns(token)
  if value() ~= token then
    return false
  end
  local it = record()
  return not it or it.session == session, it
end
