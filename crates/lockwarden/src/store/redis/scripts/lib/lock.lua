-- The key of a lock and its record.
--
-- record   packed one after the other: schema, session, token, fence, state (see `answer.rs`), lease (ms), short
--          run, proof, since (us), grace (ms), party. What the common cases compare comes first, so that
--          they need not unpack it all. Of another schema, which the common cases pass over, where it has a minimum or
--          a delay (R33, R43), or is endless: then count and of (see `together.lua`), the end of the minimum (us), the
--          delay (ms), endless (0, 1).
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

local function known_schema(schema, long)
  if schema ~= 1 --[[SCHEMA]] and schema ~= long then
    error('LOCKWARDEN another schema: ' .. tostring(schema))
  end
end

-- What a packed record says. An error if it is none.
local function record_of(text)
  local it = {}
  local schema
  schema, it.session, it.token, it.fence, it.state, it.lease, it.run, it.proof, it.since, it.grace,
    it.party, it.count, it.of, it.least, it.delay, it.endless = unpack_packed(text)
  known_schema(schema, 4 --[[LONG_RECORD]])
  it.endless = it.endless == 1
  it.count, it.of, it.least, it.delay = it.count or 0, it.of or 0, it.least or 0, it.delay or 0
  for name, expected in pairs({
    session = 'string', token = 'string', fence = 'number', state = 'number', lease = 'number',
    run = 'string', proof = 'string', since = 'number', grace = 'number', party = 'string', count = 'number',
    of = 'number', least = 'number', delay = 'number',
  }) do
    if type(it[name]) ~= expected then
      error('LOCKWARDEN a record without its ' .. name)
    end
  end
  -- What is not positive would delete the key (R14).
  if it.lease < 1 or it.grace < 1 or it.fence < 0 or it.since < 0 or it.least < 0 or it.delay < 0 then
    error('LOCKWARDEN a record with a number out of its range')
  end
  return it
end

local function text_of_record(it)
  if it.least > 0 or it.delay > 0 or it.endless then
    return pack(4 --[[LONG_RECORD]], it.session, it.token, it.fence, it.state, it.lease, it.run, it.proof, it.since,
      it.grace, it.party, it.count, it.of, it.least, it.delay, it.endless and 1 or 0)
  end
  if it.of ~= 0 then
    return pack(1 --[[SCHEMA]], it.session, it.token, it.fence, it.state, it.lease, it.run, it.proof, it.since,
      it.grace, it.party, it.count, it.of)
  end
  return pack(1 --[[SCHEMA]], it.session, it.token, it.fence, it.state, it.lease, it.run, it.proof, it.since,
    it.grace, it.party)
end

-- When the lock is free again if nobody is heard of for so many ms from now on (us): not before its minimum is over,
-- and the delay of a crash (R33, R43).
local function end_of(it, ms)
  local ends = now + (ms + it.delay) * 1000
  return ends > it.least and ends or it.least
end

-- In ms; 1 at least: a number that is not positive must never reach SET or PEXPIRE (R14).
local function left_until(ends)
  local left = ceil((ends - now) / 1000)
  return left > 0 and left or 1
end

-- Has its holder lost it or given it away already? What it is told then; or nil.
local function over(it)
  if it.state == 0 --[[IS_HELD]] then
    return nil
  end
  return it.state == 1 --[[IS_REVOKED]] and 2 --[[WAS_REVOKED]] or 1 --[[TAKEN]]
end

-- Is the lock not free, and yet nobody's?
local function is_nobodys(it)
  return it.state == 2 --[[IS_COOLING]] or it.state == 3 --[[IS_HANDED_OVER]]
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
  local schema = sub(text, 1, 11) == 'lockwarden:' and byte(text, 12)
  -- A token may begin so, too, and go on with a letter.
  if schema and schema < 32 then
    known_schema(schema, 4 --[[LONG_RECORD]])
    local ok, found = pcall(record_of, sub(text, 12))
    -- What cannot be read is what a foreign client wrote.
    it = ok and found or false
  else
    local companion_text = call('GET', companion('record'))
    it = companion_text and record_of(companion_text)
    if it and it.token ~= text then
      if it.endless then
        -- The key of an endless lock was overwritten. No expiry takes its record away (G9).
        call('DEL', companion('record'))
      end
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

-- Writes the key with a record, to end in so many ms; nil: without an end (an endless lock).
local function write(it, ttl)
  local text = text_of_record(it)
  if not ttl then
    -- Only a drop-in's. The record first: a key without one would be a foreign lock, and for ever.
    call('SET', companion('record'), text)
    call('SET', key, it.token)
    values[key] = it.token
  elseif it.proof == '' then
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
