-- Take the lock, or queue for it.
-- KEYS       the lock
-- arguments  token; term (the number of one of the call's terms)
-- answers    GRANTED, REFUSED, DEADLOCK, GUARDED (own lock, during the guard), MORE, UNSUBSCRIBED, FLOOR_AHEAD

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

local function refuse(token, term)
  local it = record()
  local steps = cycle(token, term)
  if steps then
    refuse_deadlock(token, steps)
    -- It may be refused for want of memory, and the cycle is told all the same.
    pcall(probe, it)
    return
  end
  local position, write_ticket = -1, nil
  -- An acquisition that was revoked, and has not ended yet, does not wait behind itself: its release
  -- would hand the lock to it again (G6).
  if not (it and it.token == token and it.session == session and it.proof == term.proof) then
    position, write_ticket = queue_up(token, term)
  end
  probe(it)
  if write_ticket then
    write_ticket()
  end
  answer(11 --[[REFUSED]], guard_ms, position)
  add_holder(it)
end

-- What a ticket of the caller's would say.
local function ticket_for(token, term)
  return {
    token = token, session = session, proof = term.proof, lease = term.lease, grace = term.grace,
    floor = term.floor, party = term.party,
  }
end

local function acquire(token, term)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  -- Where the clock was set back, the fences that were given are the measure.
  local measure = now > fence and now or fence
  if term.floor > measure + 86400000000 --[[MAX_FLOOR_AHEAD_US]] then
    return answer(23 --[[FLOOR_AHEAD]])
  end
  local taken = value()
  local mine = own(token, term)
  if mine then
    extend(term.lease, mine)
    if guard_ms > 0 then
      return answer(13 --[[GUARDED]], term.lease, guard_ms)
    end
    return answer(10 --[[GRANTED]], mine.fence, term.lease)
  end
  if not taken and guard_ms == 0 then
    -- First those who came before (R26).
    local drops, it, behind, more = pick()
    if more then
      drop(drops)
      return answer(22 --[[MORE]])
    end
    local to_asker = it and it.token == token and it.session == session
    drop(drops)
    if not it then
      return answer(10 --[[GRANTED]], grant(ticket_for(token, term)), term.lease)
    end
    hand(it, behind, to_asker)
    if to_asker then
      return answer(10 --[[GRANTED]], fence, it.lease)
    end
  end
  refuse(token, term)
end
