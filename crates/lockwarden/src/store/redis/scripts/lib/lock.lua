-- The key of a lock and its record.
--
-- record   packed one after the other: schema, session, token | revoked (0, 1), lease (ms), run |
--          proof, fence, since (us), grace (ms), party. The first six are in this order so that the
--          common cases compare a beginning instead of unpacking it all.

-- The name of a companion of the lock's key, in the same slot of a Cluster (`keys.rs` chooses the form).
local function companion(kind)
  if form == '' then
    return 'lockwarden:' .. kind .. ':{' .. key .. '}'
  end
  return 'lockwarden:' .. kind .. form .. key
end

local own_head = pack(SCHEMA, session)

-- The part of a record that an extension changes.
local extended = {}
local function extension(lease)
  local text = extended[lease]
  if not text then
    text = pack(0, tonumber(lease), meta_run)
    extended[lease] = text
  end
  return text
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

local function record_text()
  local text = records[key]
  if text == nil then
    text = call('GET', companion('record'))
    records[key] = text
  end
  return text
end

local function known_schema(schema)
  if schema ~= SCHEMA then
    error('LOCKWARDEN another schema: ' .. tostring(schema))
  end
end

-- The record, if it counts (R3); else nil.
local function record()
  local token = value()
  local text = token and record_text()
  if not text then
    return nil
  end
  local it = {}
  local schema
  schema, it.session, it.token, it.revoked, it.lease, it.run, it.proof, it.fence, it.since, it.grace,
    it.party = unpack_packed(text)
  known_schema(schema)
  if it.token ~= token then
    return nil
  end
  return it
end

-- Writes a record anew, to end in so many ms.
local function write_record(it, ttl)
  local text = pack(SCHEMA, it.session, it.token) .. pack(it.revoked, it.lease, it.run)
    .. pack(it.proof, it.fence, it.since, it.grace, it.party)
  call('SET', companion('record'), text, 'PX', ttl)
  records[key] = text
end

-- Writes a grant; the fence grows with every one of them, per name and in all (R34). `only_if_free`:
-- the key was not read in a way that tells a free one from one of another type.
local function grant(it, only_if_free)
  local next_fence = fence + 1
  if now > next_fence then
    next_fence = now
  end
  if it.floor >= next_fence then
    next_fence = it.floor + 1
  end
  local lease = it.lease
  if only_if_free then
    if not call('SET', key, it.token, 'PX', lease, 'NX') then
      call('GET', key)
      error('LOCKWARDEN a free key that is taken')
    end
  else
    call('SET', key, it.token, 'PX', lease)
  end
  fence, fence_grew = next_fence, true
  local text = (it.head or pack(SCHEMA, it.session)) .. pack(it.token) .. extension(lease)
    .. pack(it.proof, next_fence, now, it.grace, it.party)
  call('SET', companion('record'), text, 'PX', lease)
  values[key], records[key] = it.token, text
  return next_fence
end

-- Deletes the holder.
local function delete()
  call('DEL', key, companion('record'))
  values[key], records[key], certain[key] = false, false, true
end

-- Sets the whole lease of the present holder, and writes what it results in (R15). `it`: its record,
-- if one counts.
local function extend(lease, it)
  call('PEXPIRE', key, lease)
  if it then
    it.lease, it.run = tonumber(lease), meta_run
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
  return value() and TAKEN or FREE
end

-- May the caller renew or release by this token? Not if the record says that another session holds it
-- (R25). A key without a counting record is anyone's who knows its value.
local function owns(token)
  if value() ~= token then
    return false
  end
  local text = record_text()
  if not text or sub(text, 1, #own_head) == own_head then
    return true
  end
  local it = record()
  return not it or it.session == session
end
