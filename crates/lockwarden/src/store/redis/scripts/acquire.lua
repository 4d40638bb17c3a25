-- Take the lock, or queue for it; or all of several, or none (R29).
-- KEYS       the lock, or the locks
-- arguments  token; term (the number of one of the call's terms)
-- answers    GRANTED, REFUSED, REFUSED_SEVERAL (also of one lock that several hold together), DEADLOCK, OTHER_MODE,
--            GUARDED (own lock, during the guard), NOT_HELD (to be adopted), MORE, UNSUBSCRIBED, FLOOR_AHEAD

-- The caller's own acquisition, asked for again (R25): its record, else nil. A redelivered task brings
-- the same value from another session, and must be refused.
local function own(token, term)
  local it = held_by(token)
  if it and it.session == session and it.proof == term.proof and it.state == 0 --[[IS_HELD]] then
    return it
  end
  return nil
end

-- How each of these keys is asked for: 's', 'pCOUNT/OF' or nothing, with commas between them; `keeping_of` reads the rest.
local function modes_of(keys, term)
  local modes = {}
  local n = 0
  for text in string.gmatch(match(term.how, '^[^;]*') .. ',', '([^,]*),') do
    n = n + 1
    local count, of = mode_of(text)
    modes[n] = { count = count, of = of }
  end
  for at = n + 1, #keys do
    modes[at] = { count = 0, of = 0 }
  end
  return modes
end

-- The first of the locks that is in use in a mode that the one asked for cannot be beside, by its holders or by those
-- who wait for it: its number, and that mode.
local function other_mode(keys, token, modes)
  for n = 1, #keys do
    key = keys[n]
    local count, of = mode_in_use()
    if not of and waits[key] ~= false then
      local tokens, texts = places(0, 64 --[[DROPS_PER_COMMAND]] - 1)
      for at = 1, #tokens do
        local it = tokens[at] ~= token and texts[at] and ticket_of(tokens[at], texts[at])
        if it and lives(it) then
          count, of = it.count, it.of
          break
        end
      end
    end
    if of and not may_stand_beside(modes[n].of, of) then
      return n, mode_text(count, of)
    end
  end
  return nil
end

local function refuse(keys, token, term, modes)
  local steps = cycle(keys, token, term, modes)
  if steps then
    refuse_deadlock(keys, token, steps)
    for n = 1, #keys do
      key = keys[n]
      -- It may be refused for want of memory, and the cycle is told all the same.
      pcall(probe)
    end
    return
  end
  -- An acquisition that was revoked, and has not ended yet, does not wait behind itself: its release
  -- would hand the lock to it again (G6).
  local waits_behind_itself = false
  for n = 1, #keys do
    key = keys[n]
    local it = held_by(token)
    waits_behind_itself = waits_behind_itself
      or (it and it.session == session and it.proof == term.proof)
  end
  key = keys[1]
  local position, write_tickets = -1, nil
  if not waits_behind_itself then
    position, write_tickets = queue_up(keys, token, term, modes)
  end
  for n = 1, #keys do
    key = keys[n]
    probe()
  end
  key = keys[1]
  if write_tickets then
    write_tickets()
  end
  local held, full = {}, {}
  for n = 1, #keys do
    key = keys[n]
    if value() then
      held[#held + 1] = n
      if not has_room(modes[n].count, modes[n].of) then
        full[#full + 1] = n
      end
    end
  end
  -- Where there is room it is not the holders who are in the way.
  if #full > 0 then
    held = full
  end
  if #keys == 1 and not is_together() then
    answer(11 --[[REFUSED]], guard_ms, position)
    return add_holder(record())
  end
  answer(27 --[[REFUSED_SEVERAL]], guard_ms, position)
  local kept_at = 0
  if #held == 0 then
    for n = #keys, 1, -1 do
      key = keys[n]
      kept_at = is_kept(token) and n - 1 or kept_at
    end
  end
  add(kept_at)
  add(0)
  local counted, told, beside = last, 0, {}
  local function tell(n, it)
    if told < 16 --[[MOST_HOLDERS_TOLD]] then
      told = told + 1
      key = keys[n]
      add(n - 1)
      add_holder(it)
    end
  end
  -- One of each lock, then those beside them: their processes are watched, too (G3).
  for _, n in ipairs(held) do
    if told == 16 --[[MOST_HOLDERS_TOLD]] then
      break
    end
    key = keys[n]
    local list = holders(16 --[[MOST_HOLDERS_TOLD]] + 1)
    tell(n, list[1])
    for at = 2, #list do
      beside[#beside + 1] = { n, list[at] }
    end
  end
  for _, other in ipairs(beside) do
    tell(other[1], other[2])
  end
  reply[counted] = told
end

-- What a ticket of the caller's would say.
local function ticket_for(token, term)
  local at_least, delay, endless = keeping_of(term)
  return {
    token = token, session = session, proof = term.proof, lease = term.lease, grace = term.grace,
    at_least = at_least, delay = delay, endless = endless, floor = term.floor, party = term.party,
  }
end

-- Takes over what was handed over under the asker's token: all of it, or nothing (R32).
local function adopt(keys, token, term)
  if guard_ms > 0 then
    -- What an old snapshot brought back may have been adopted since (R6).
    return refuse(keys, token, term, modes_of(keys, term))
  end
  local modes = {}
  for n = 1, #keys do
    key = keys[n]
    local it = held_by(token)
    -- Not in the rest of a minimum or a delay that is longer.
    if not it or it.state ~= 3 --[[IS_HANDED_OVER]] or it.since + it.lease * 1000 <= now then
      return answer(14 --[[NOT_HELD]], absence())
    end
    -- The minimum is that of the work, whoever does it.
    modes[n] = { count = it.count, of = it.of, least = it.least }
  end
  for n = 1, #keys do
    key = keys[n]
    if modes[n].of ~= 0 then
      remove_share(token)
    end
  end
  key = keys[1]
  answer(10 --[[GRANTED]], grant(ticket_for(token, term), keys, modes, true), term.lease)
end

-- After a grant to the caller that may have passed others: those behind a ticket of its own enter with it (G4), and
-- whoever is first is told.
local function see_to_those_behind(keys, modes, was_queued)
  for n = 1, #keys do
    key = keys[n]
    if was_queued and modes[n].of ~= 0 then
      serve()
    end
    tell_who_is_first()
  end
  key = keys[1]
end

local function acquire(keys, token, term)
  look_at(keys)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  if is_ahead(term.floor) then
    return answer(23 --[[FLOOR_AHEAD]])
  end
  local owned, mine = {}, nil
  for n = 1, #keys do
    key = keys[n]
    value()
    local it = own(token, term)
    if it then
      owned[#owned + 1] = key
      mine = mine or it
    end
  end
  if #owned == #keys then
    for n = 1, #keys do
      key = keys[n]
      extend(term.lease, held_by(token))
    end
    if guard_ms > 0 then
      return answer(13 --[[GUARDED]], term.lease, guard_ms)
    end
    return answer(10 --[[GRANTED]], mine.fence, term.lease)
  end
  if term.wait == -3 --[[ADOPT]] then
    return adopt(keys, token, term)
  end
  if #owned > 0 then
    -- Of several that were granted together some are lost: the rest is given back, to be asked for anew.
    free(owned, token)
  end
  local modes = modes_of(keys, term)
  local in_use_at, in_use = other_mode(keys, token, modes)
  if in_use_at then
    stand_down(keys, token, function(old)
      return old.session == session
    end)
    return answer(28 --[[OTHER_MODE]], in_use_at - 1, in_use)
  end
  local is_open, is_stopped, has_passed = guard_ms == 0, false, false
  for n = 1, guard_ms == 0 and #keys or 0 do
    key = keys[n]
    if not may_grant() then
      is_open = false
    else
      -- First those who came before (R26).
      local ahead, passed = serve(token, nil, keys)
      has_passed = has_passed or passed
      if ahead == 'asker' then
        ahead, is_stopped = nil, true
      end
      if ahead == 'more' then
        return answer(22 --[[MORE]])
      end
      -- Its own that was revoked, and has not ended yet, is in its way (G6).
      is_open = is_open and not ahead and has_room(modes[n].count, modes[n].of) and not held_by(token)
    end
  end
  key = keys[1]
  if is_open then
    -- Tickets of its own: nothing keeps it from any of its locks any more.
    if #keys > 1 or is_stopped then
      leave_queues(keys, token, function(old)
        return old.session == session
      end)
    end
    local granted_fence = grant(ticket_for(token, term), keys, modes, true)
    -- After writes nothing may fail (R12): whoever is first looks again.
    if is_stopped or has_passed then
      pcall(see_to_those_behind, keys, modes, is_stopped)
    end
    return answer(10 --[[GRANTED]], granted_fence, term.lease)
  end
  if is_stopped and #keys > 1 then
    -- Somebody came first at another of its locks: those behind it are not kept from these.
    local owns = true
    for n = 1, #keys do
      key = keys[n]
      promote()
    end
    for n = 1, #keys do
      key = keys[n]
      owns = owns and own(token, term)
    end
    key = keys[1]
    if owns then
      return answer(10 --[[GRANTED]], owns.fence, owns.lease)
    end
  end
  refuse(keys, token, term, modes)
end
