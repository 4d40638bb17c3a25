-- The cycle that a request would close (G7, R37), as `deadlock.rs` finds it: the key, the time and the party of
-- each holder, from the lock that is asked for to the one that the asker's own owner holds. Else nil. Reads
-- only (R12).

local function is_part_of(part, whole)
  return part == whole or (part and sub(part, 1, #whole + 1) == whole .. '/')
end

-- Whom this owner waits for: sets the key, and gives the ticket. Nil: it waits nowhere.
local function follow(owner)
  local text = try('GET', 'lockwarden:wait:' .. owner)
  local ok, schema, its_key, tail, token = pcall(unpack_packed, type(text) == 'string' and text or '')
  if not ok or schema ~= 1 --[[SCHEMA]] then
    return nil
  end
  key = its_key
  if tail ~= '' then
    tails[key] = tail
  end
  local it = ticket(token)
  if it and is_part_of(owner_of(it.party), owner) and (it.deadline < 0 or it.deadline > now)
    and subscribers(it.session) > 0 and call('ZSCORE', companion('queue'), token) then
    return it
  end
  return nil
end

local function walk(token, asker)
  local own = ticket(token)
  if own and (own.session ~= session or not call('ZSCORE', companion('queue'), token)) then
    own = nil
  end
  local steps = {}
  for n = 1, 256 --[[LONGEST_CYCLE]] do
    local it = record()
    -- One that was revoked, or whose link is closed, ends soon by itself. The asker's own acquisition under the
    -- same token is one that was revoked (G6).
    if not it or it.revoked == 1 or subscribers(it.session) == 0
      or (it.token == token and it.session == session) then
      return nil
    end
    steps[n] = { key, held_ms(it.since), it.party }
    local owner = owner_of(it.party)
    if owner and is_part_of(asker, owner) then
      return steps
    end
    local waiting = owner and follow(owner)
    -- Of those who wait already, only the youngest is refused.
    if not waiting or (own and (own.since < waiting.since
      or (own.since == waiting.since and own.token < waiting.token))) then
      return nil
    end
  end
  return nil
end

local function cycle(token, term)
  local asker = owner_of(term.party)
  if not asker or term.wait == -2 --[[NO_WAIT]] then
    return nil
  end
  local asked_for = key
  -- Another lock's key may hold anything: then the way ends there.
  local ok, steps = pcall(walk, token, asker)
  key = asked_for
  return ok and steps or nil
end

-- Takes the asker's ticket out of the queue, and answers.
local function refuse_deadlock(token, steps)
  local old = ticket(token)
  if old and old.session == session then
    drop({ token })
    wait_ends(old)
  end
  answer(26 --[[DEADLOCK]], #steps)
  for n = 1, #steps do
    add(steps[n][1])
    add(steps[n][2])
    add(steps[n][3])
  end
end
