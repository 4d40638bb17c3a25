-- The cycle that a request would close (G7, R37), as `deadlock.rs` finds it: the key, the time and the party of
-- each holder, from the lock that is asked for to the one that the asker's own owner holds. Reads only (R12).

local function is_part_of(part, whole)
  return part == whole or (part and sub(part, 1, #whole + 1) == whole .. '/')
end

-- Where this owner and its parts wait, in order.
local function places_of(owner)
  local texts = look('HKEYS', waits_key(owner))
  local places = {}
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

-- The ticket by which this owner, or a part of it, waits at `key`, as the place says; false or nil: it does not. An error
-- if that cannot be read.
local function waits_there(place, owner, own)
  local it = ticket(place.token)
  -- Of those who wait already, only the youngest is refused.
  return it and is_part_of(owner_of(it.party), owner) and lives(it)
    and call('ZRANK', companion('queue'), place.token) and not (own and came_before(own, it)) and it
end

-- walk: asker, token, own (the asker's ticket, if it waits already), kept (the request that locks are kept for; nil,
-- too, once no way leads on from it), seen (owners from which no way leads back), count (of those), steps.

local leads_back

-- Does a way lead from the holder of `key` back to the asker? Then its steps are left.
local function by_its_holder(walk)
  local its_key = key
  -- Another lock's key may hold anything: then no way leads on there.
  local ok, it = pcall(record)
  -- One that was revoked, or whose link is closed, ends soon by itself. The asker's own acquisition under the same
  -- token is one that was revoked (G6).
  local owner = ok and it and it.revoked == 0 and subscribers(it.session) > 0
    and not (it.token == walk.token and it.session == session) and owner_of(it.party)
  if not owner then
    return false
  end
  walk.steps[#walk.steps + 1] = { its_key, held_ms(it.since), it.party }
  if is_part_of(walk.asker, owner) then
    return true
  end
  if walk.count + 1 < 256 --[[LONGEST_CYCLE]] and not walk.seen[owner] then
    walk.seen[owner], walk.count = true, walk.count + 1
    for _, place in ipairs(places_of(owner)) do
      key = place.key
      if place.tail ~= '' then
        tails[key] = place.tail
      end
      -- Another lock's queue may hold anything, too: what cannot be read leads nowhere.
      local readable, waiting = pcall(waits_there, place, owner, walk.own)
      if readable and waiting then
        local keys = { key }
        if waiting.several then
          local ok_too, request = pcall(request_of, place.token)
          keys = ok_too and request and request.keys or {}
        end
        for n = 1, #keys do
          key = keys[n]
          if leads_back(walk, place.token) then
            return true
          end
        end
      end
    end
  end
  walk.steps[#walk.steps] = nil
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
    if by_its_holder(walk) then
      return true
    end
  end
  walk.steps[#walk.steps] = nil
  return false
end

-- The same for whoever waits there with that token.
leads_back = function(walk, token)
  local its_key = key
  if by_its_holder(walk) then
    return true
  end
  key = its_key
  return by_whom_it_is_kept_for(walk, token)
end

local function cycle(keys, token, term)
  local asker = owner_of(term.party)
  if not asker or term.wait == -2 --[[NO_WAIT]] then
    return nil
  end
  key = keys[1]
  local own = ticket(token)
  if own and (own.session ~= session or not call('ZRANK', companion('queue'), token)) then
    own = nil
  end
  local walk = {
    asker = asker, token = token, own = own, kept = kept_for(), seen = {}, count = 0, steps = {},
  }
  local found = false
  for n = 1, #keys do
    key = keys[n]
    found = leads_back(walk, token)
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
