-- Take the lock, or queue for it; or all of several, or none (R29).
-- KEYS       the lock, or the locks
-- arguments  token; term (the number of one of the call's terms)
-- answers    GRANTED, REFUSED, REFUSED_SEVERAL, DEADLOCK, GUARDED (own lock, during the guard), MORE, UNSUBSCRIBED,
--            FLOOR_AHEAD

-- The caller's own acquisition, asked for again (R25): its record, else nil. A redelivered task brings
-- the same value from another session, and must be refused.
local function own(token, term)
  local it = record()
  if it and it.token == token and it.session == session and it.proof == term.proof
    and it.revoked == 0 then
    return it
  end
  return nil
end

local function refuse(keys, token, term)
  local steps = cycle(keys, token, term)
  if steps then
    refuse_deadlock(keys, token, steps)
    for n = 1, #keys do
      key = keys[n]
      -- It may be refused for want of memory, and the cycle is told all the same.
      pcall(probe, record())
    end
    return
  end
  -- An acquisition that was revoked, and has not ended yet, does not wait behind itself: its release
  -- would hand the lock to it again (G6).
  local waits_behind_itself = false
  for n = 1, #keys do
    key = keys[n]
    local it = record()
    waits_behind_itself = waits_behind_itself
      or (it and it.token == token and it.session == session and it.proof == term.proof)
  end
  key = keys[1]
  local position, write_tickets = -1, nil
  if not waits_behind_itself then
    position, write_tickets = queue_up(keys, token, term)
  end
  for n = 1, #keys do
    key = keys[n]
    probe(record())
  end
  key = keys[1]
  if write_tickets then
    write_tickets()
  end
  if #keys == 1 then
    answer(11 --[[REFUSED]], guard_ms, position)
    return add_holder(record())
  end
  answer(27 --[[REFUSED_SEVERAL]], guard_ms, position)
  local kept_at, held = 0, {}
  for n = #keys, 1, -1 do
    key = keys[n]
    if value() then
      table.insert(held, 1, n)
    end
  end
  if #held == 0 then
    for n = #keys, 1, -1 do
      key = keys[n]
      kept_at = is_kept(token) and n - 1 or kept_at
    end
  end
  local told = #held < 16 --[[MOST_HOLDERS_TOLD]] and #held or 16 --[[MOST_HOLDERS_TOLD]]
  add(kept_at)
  add(told)
  for n = 1, told do
    key = keys[held[n]]
    add(held[n] - 1)
    add_holder(record())
  end
end

-- What a ticket of the caller's would say.
local function ticket_for(token, term)
  return {
    token = token, session = session, proof = term.proof, lease = term.lease, grace = term.grace,
    floor = term.floor, party = term.party,
  }
end

local function acquire(keys, token, term)
  look_at(keys)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  -- Where the clock was set back, the fences that were given are the measure.
  local measure = now > fence and now or fence
  if term.floor > measure + 86400000000 --[[MAX_FLOOR_AHEAD_US]] then
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
      extend(term.lease, record())
    end
    if guard_ms > 0 then
      return answer(13 --[[GUARDED]], term.lease, guard_ms)
    end
    return answer(10 --[[GRANTED]], mine.fence, term.lease)
  end
  if #owned > 0 then
    -- Of several that were granted together some are lost: the rest is given back, to be asked for anew.
    free(owned)
  end
  local is_open, passed = guard_ms == 0, {}
  for n = 1, guard_ms == 0 and #keys or 0 do
    key = keys[n]
    if value() then
      is_open = false
    else
      -- First those who came before (R26).
      local drops, it, request, first, why = pick()
      local to_asker = it and it.token == token and it.session == session
      serve(drops, it, request, first, to_asker)
      if why == 'more' then
        return answer(22 --[[MORE]])
      end
      if to_asker then
        return answer(10 --[[GRANTED]], fence, it.lease)
      end
      is_open = is_open and not it and not why
      if first then
        passed[#passed + 1] = key
      end
    end
  end
  key = keys[1]
  if is_open then
    -- Tickets of its own that were passed: nothing keeps it from any of its locks any more.
    if #keys > 1 then
      leave_queues(keys, token, function(old)
        return old.session == session
      end)
    end
    local it = ticket_for(token, term)
    local granted_fence = grant(it, keys)
    -- After writes nothing may fail (R12): whoever is first looks again.
    pcall(tell_firsts, passed, it, granted_fence)
    return answer(10 --[[GRANTED]], granted_fence, term.lease)
  end
  refuse(keys, token, term)
end
