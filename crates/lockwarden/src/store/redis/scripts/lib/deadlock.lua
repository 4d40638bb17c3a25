-- The cycle that a request would close (G7, R37), as `deadlock.rs` finds it: the key, the time and the party of
-- each holder, from the lock that is asked for to the one that the asker's own owner holds. Reads only (R12).

local function is_part_of(part, whole)
  return part == whole or (part and sub(part, 1, #whole + 1) == whole .. '/')
end

-- Where this owner and its parts wait, in order.
local function places_of(owner)
  local name = waits_key(owner)
  if known_places[name] then
    return known_places[name]
  end
  local texts = look('HKEYS', name)
  local places = {}
  known_places[name] = places
  for n = 1, texts.err and 0 or #texts do
    local ok, schema, its_key, tail, token = pcall(unpack_packed, texts[n])
    if ok and schema == 1 --[[SCHEMA]] then
      places[#places + 1] = { key = its_key, tail = tail, token = token }
    end
  end
  table.sort(places, function(one, other)
    return one.key < other.key or (one.key == other.key and one.token < other.token)
  end)
  return places
end

local function came_before(one, other)
  return one.since < other.since or (one.since == other.since and one.token < other.token)
end

-- The ticket that stands in the queue of `key` with this token, with its owner; or false. An error if that cannot be read.
local function waiting_ticket(token)
  local known = known_waiting[key]
  if not known then
    known = {}
    known_waiting[key] = known
  end
  if known[token] == nil then
    local it = ticket(token)
    if it then
      it.owner = owner_of(it.party)
    end
    known[token] = it and call('ZRANK', companion('queue'), token) and it or false
  end
  return known[token]
end

-- The ticket by which this owner, or a part of it, waits at `key`, as the place says; false or nil: it does not. An error
-- if that cannot be read.
local function waits_there(place, owner, own)
  local it = waiting_ticket(place.token)
  -- Of those who wait already, only the youngest is refused.
  return it and is_part_of(it.owner, owner) and lives(it) and not (own and came_before(own, it)) and it
end

-- walk: asker, token, own (the asker's ticket, if it waits already), kept (the request that locks are kept for; nil,
-- too, once no way leads on from it), seen (owners that were looked at), count (of those), back (of the owners from which
-- a way leads back: the steps), steps.

local leads_back

-- The mode for which there is no room at `key`: that of whoever waits there with the token, or of the first who must be
-- served before it. Nil: it need not wait for the holders.
local function lacks_room(token, mode)
  if not value() or not has_room(mode.count, mode.of) then
    return mode
  end
  local upto = call('ZRANK', companion('queue'), token)
  local tokens, texts = places(0, upto and upto - 1 or -1)
  if upto == 0 then
    tokens, texts = {}, {}
  end
  for n = 1, #tokens do
    local it = texts[n] and ticket_of(tokens[n], texts[n])
    if it and not it.several and not has_room(it.count, it.of) and lives(it) then
      return it
    end
  end
  return nil
end

local function cut(steps, from)
  for n = #steps, from + 1, -1 do
    steps[n] = nil
  end
end

local function by_places(walk, owner)
  for _, place in ipairs(places_of(owner)) do
    key = place.key
    if place.tail ~= '' then
      tails[key] = place.tail
    end
    -- Another lock's queue may hold anything, too: what cannot be read leads nowhere.
    local readable, waiting = pcall(waits_there, place, owner, walk.own)
    if readable and waiting then
      local keys, modes = { key }, { waiting }
      if waiting.several then
        local ok, request = pcall(request_of, place.token)
        keys, modes = {}, {}
        if ok and request then
          keys, modes = request.keys, request.modes
        end
      end
      for n = 1, #keys do
        key = keys[n]
        if leads_back(walk, place.token, modes[n]) then
          return true
        end
      end
    end
  end
  return false
end

-- Does a way lead from this holder of `its_key` back to the asker? Then its steps are left.
local function by_holder(walk, its_key, it)
  -- One that nobody has any more, or whose link is closed, ends soon by itself. The asker's own acquisition under the
  -- same token is one that was revoked (G6).
  local owner = it.state == 0 --[[IS_HELD]] and subscribers(it.session) > 0
    and not (it.token == walk.token and it.session == session) and owner_of(it.party)
  if not owner then
    return false
  end
  local steps = walk.steps
  steps[#steps + 1] = { its_key, held_ms(it.since), it.party }
  local from = #steps
  if is_part_of(walk.asker, owner) then
    return true
  end
  if walk.back[owner] then
    for n = 1, #walk.back[owner] do
      steps[#steps + 1] = walk.back[owner][n]
    end
    return true
  end
  if walk.count + 1 < 256 --[[LONGEST_CYCLE]] and not walk.seen[owner] then
    walk.seen[owner], walk.count = true, walk.count + 1
    if by_places(walk, owner) then
      walk.back[owner] = { unpack(steps, from + 1) }
      return true
    end
  end
  cut(steps, from - 1)
  return false
end

-- The same from `key`, where whoever waits has no room beside the holders: one is enough to wait for, or with permits as
-- many as have what is missing.
local function by_its_holders(walk, token, mode)
  local its_key = key
  -- Another lock's key may hold anything: then no way leads on there.
  local ok, list, lacking = pcall(function()
    local lacking = lacks_room(token, mode)
    return lacking and holders(256 --[[LONGEST_CYCLE]]) or {}, lacking
  end)
  if not ok or not lacking then
    return false
  end
  local spare = lacking.of > 0 and lacking.of - lacking.count or 0
  local from, stuck = #walk.steps, 0
  for n = 1, #list do
    cut(walk.steps, from)
    local it = list[n]
    if by_holder(walk, its_key, it) then
      stuck = stuck + (it.of > 0 and it.count or 1)
      if stuck > spare then
        return true
      end
    end
  end
  cut(walk.steps, from)
  return false
end

-- The same by the request that the lock is kept for, if that came before the token.
local function by_whom_it_is_kept_for(walk, token)
  local request = walk.kept
  local queue = companion('queue')
  local rank = request and request.token ~= token and try('ZRANK', queue, request.token)
  if type(rank) ~= 'number' then
    return false
  end
  local own = try('ZRANK', queue, token)
  if type(own) == 'number' and own < rank then
    return false
  end
  walk.kept = nil
  walk.steps[#walk.steps + 1] = { key, held_ms(request.since), request.party }
  for n = 1, #request.keys do
    key = request.keys[n]
    if by_its_holders(walk, request.token, request.modes[n]) then
      return true
    end
  end
  walk.steps[#walk.steps] = nil
  return false
end

-- The same for whoever waits there with that token.
leads_back = function(walk, token, mode)
  local its_key = key
  if by_its_holders(walk, token, mode) then
    return true
  end
  key = its_key
  return by_whom_it_is_kept_for(walk, token)
end

local function cycle(keys, token, term, modes)
  local asker = owner_of(term.party)
  if not asker or term.wait <= -2 --[[NO_WAIT]] then
    return nil
  end
  key = keys[1]
  local own = ticket(token)
  if own and (own.session ~= session or not call('ZRANK', companion('queue'), token)) then
    own = nil
  end
  local walk = {
    asker = asker, token = token, own = own, kept = kept_for(), seen = {}, count = 0, back = {}, steps = {},
  }
  local found = false
  for n = 1, #keys do
    key = keys[n]
    found = leads_back(walk, token, modes[n])
    if found then
      break
    end
  end
  key = keys[1]
  return found and walk.steps or nil
end

-- Takes the asker's tickets out of the queues, and answers.
local function refuse_deadlock(keys, token, steps)
  stand_down(keys, token, function(old)
    return old.session == session
  end)
  answer(26 --[[DEADLOCK]], #steps)
  for n = 1, #steps do
    add(steps[n][1])
    add(steps[n][2])
    add(steps[n][3])
  end
end
