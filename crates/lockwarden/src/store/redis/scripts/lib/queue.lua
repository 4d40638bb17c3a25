-- Who is served next (G4, R26 to R29), as `table/queue.rs` has it.

-- Looks for the first ticket that is alive, in time and can be served (R26). Gives what to `drop`; the ticket, its
-- request if it has one, and the ticket that is the first behind it or was passed; or nil, and why nobody can be
-- served: 'kept', or 'more' where the bound on dropped tickets was met; or neither: nobody is in the way, but one or more
-- were passed if there is a first.
local function pick()
  local drops = {}
  if waits[key] == false then
    return drops
  end
  local tokens, texts = places(0, 1)
  local passed
  for at = 1, 64 --[[DROPS_PER_COMMAND]] do
    if at == 2 then
      tokens, texts = places(0, 64 --[[DROPS_PER_COMMAND]])
    end
    local token, text = tokens[at], texts[at]
    if not token then
      return drops, nil, nil, passed
    end
    local it = text and ticket_of(token, text)
    local request = it and it.several and request_of(token)
    if not it or not lives(it) or (it.several and not request) then
      drops[#drops + 1] = token
    elseif request and not can_serve(request) then
      local kept = kept_for()
      if kept and kept.token == token then
        return drops, nil, nil, nil, 'kept'
      end
      passed = passed or it
    else
      local first = passed or (texts[at + 1] and ticket_of(tokens[at + 1], texts[at + 1]))
      return drops, it, request, first
    end
  end
  if tokens[64 --[[DROPS_PER_COMMAND]] + 1] then
    return drops, nil, nil, nil, #drops > 0 and 'more' or 'kept'
  end
  return drops, nil, nil, passed
end

local function tell_first(first, it, granted_fence)
  tell(first.session, 'F', field(key) .. field(first.token) .. field(it.token) .. number(it.lease)
    .. field(it.session) .. number(granted_fence) .. number(it.lease) .. number(it.grace)
    .. field('0') .. field('0') .. field(it.party))
end

-- Tells whoever is first in the queues of these keys now that it looks after this new holder (G5).
local function tell_firsts(keys, it, granted_fence)
  local here = key
  for n = 1, #keys do
    key = keys[n]
    local tokens, texts = places(0, 0)
    if texts[1] then
      tell_first(ticket_of(tokens[1], texts[1]), it, granted_fence)
    end
  end
  key = here
end

-- Grants the lock to a ticket that `pick` found, and with it the others of its request. One of the asker gets the
-- whole lease, for its reply says so; another gets W at most and is told by message (R27).
local function hand(it, request, first, to_asker)
  if not to_asker and it.lease > 3000 --[[W_MS]] then
    it.lease = 3000 --[[W_MS]]
  end
  local same = ''
  local here = key
  local granted_fence
  -- Whoever is first now looks after the new holder (G5).
  if request then
    for n = 1, #request.keys do
      key = request.keys[n]
      drop({ it.token })
    end
    key = request.keys[1]
    wait_ends(it)
    forget_request(it.token)
    granted_fence = grant(it, request.keys)
    tell_firsts(request.keys, it, granted_fence)
  else
    wait_ends(it)
    granted_fence = grant(it, { key })
    -- One message does for both where both are the same session's.
    if first and not to_asker and first.session == it.session then
      same = first.token
    elseif first then
      tell_first(first, it, granted_fence)
    end
  end
  if not to_asker then
    tell(it.session, 'G', field(key) .. field(it.token) .. number(granted_fence) .. number(it.lease)
      .. field(epoch) .. field(same))
  end
  key = here
end

-- Drops what `pick` said, and hands the lock to whom it found.
local function serve(drops, it, request, first, to_asker)
  if it and not request then
    drops[#drops + 1] = it.token
  end
  drop(drops)
  if it then
    hand(it, request, first, to_asker)
  end
end

-- Hands on a lock that is free by now. After writes nothing may fail (R12): whoever is first looks again (G5).
local function promote()
  pcall(function()
    if not value() then
      local drops, it, request, first = pick()
      serve(drops, it, request, first, false)
    end
  end)
end

-- Deletes the holders of these keys, all of them first, then hands on in the same step (G3, G4). `before`: what to do
-- in between.
local function free(keys, before)
  local here = key
  local drops, it, request, first = {}, nil, nil, nil
  if #keys == 1 and guard_ms == 0 then
    -- Read before the first write (R12).
    key = keys[1]
    drops, it, request, first = pick()
  end
  for n = 1, #keys do
    key = keys[n]
    delete()
  end
  if before then
    before()
  end
  if #keys == 1 then
    serve(drops, it, request, first, false)
  elseif guard_ms == 0 then
    for n = 1, #keys do
      key = keys[n]
      promote()
    end
  end
  key = here
end

-- Takes the tickets of a token out of the queues of these keys. True: they were a request's, for whose sake others may
-- have waited.
local function leave_queues(keys, token, is_own)
  local here = key
  local one_of_several = false
  for n = 1, #keys do
    key = keys[n]
    local old = ticket(token)
    if old and is_own(old) then
      drop({ token })
      if old.several then
        one_of_several = true
      else
        wait_ends(old)
      end
    end
  end
  -- Its tickets may have been dropped while its session was cut off. What is left of it would have names kept for
  -- nobody.
  local request = (one_of_several or #keys > 1) and request_of(token)
  if request and request.session == session then
    key = request.keys[1]
    wait_ends(request)
    forget_request(token)
  end
  key = here
  return one_of_several
end

-- Gives up waiting. Where a request for several names goes, others may have waited for it only.
local function stand_down(keys, token, is_own)
  if leave_queues(keys, token, is_own) and guard_ms == 0 then
    local here = key
    for n = 1, #keys do
      key = keys[n]
      promote()
    end
    key = here
  end
end

-- How many of the first `index` tickets are alive. Only the first two living look after the holder, so
-- only they must know their place exactly: from the second on it is `index` itself.
local function living_ahead(index)
  local living, at, step = 0, 0, 2
  local bound = 64 --[[DROPS_PER_COMMAND]]
  while at < index and at < bound do
    local upto = at + step
    if upto > index then
      upto = index
    end
    if upto > bound then
      upto = bound
    end
    local tokens, texts = places(at, upto - 1)
    for i = 1, #tokens do
      if texts[i] and subscribers(ticket_of(tokens[i], texts[i]).session) > 0 then
        living = living + 1
        if living == 2 then
          return index
        end
      end
    end
    at, step = upto, 32
  end
  return index > bound and index or living
end

-- Prepares a waiting caller's ticket for one key, or its refreshing; its place stays (R28, G6). Reads only (R12). Gives
-- its index in the queue (nil: another's ticket is in its way), and what then writes it.
local function enqueue(new)
  local queue, tickets = companion('queue'), companion('tickets')
  local text = call('HGET', tickets, new.token)
  local index = text and call('ZRANK', queue, new.token)
  local score
  if index then
    local old = ticket_of(new.token, text)
    if old.session ~= new.session or old.proof ~= new.proof then
      -- Another session's ticket of the same value is in the way of ours (R25).
      return nil, function()
        keep_queue(queue, tickets)
      end
    end
    -- A repeated request changes its deadline and nothing else.
    old.deadline = new.deadline
    text = text_of(old)
  else
    local newest = call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
    score = newest[2] and newest[2] + 1 or 0
    index = newest[1] and call('ZCARD', queue) or 0
    text = text_of(new)
  end
  return index, function()
    waits[key] = true
    if score then
      call('ZADD', queue, score, new.token)
    end
    call('HSET', tickets, new.token, text)
    keep_queue(queue, tickets)
  end
end

-- Prepares a waiting caller's tickets for all keys. Reads only; gives the position (-1: no ticket), and what then
-- writes them.
local function queue_up(keys, token, term)
  if term.wait == -2 --[[NO_WAIT]] then
    return -1
  end
  local it = {
    token = token, proof = term.proof, session = session, lease = term.lease, grace = term.grace, floor = term.floor,
    deadline = -1, since = now, party = term.party, several = #keys > 1,
  }
  if term.wait ~= -1 --[[FOR_EVER]] then
    it.deadline = now + term.wait * 1000
  end
  local request
  if it.several then
    local known = request_of(token)
    it.since = known and known.since or now
    request = {
      token = token, session = session, deadline = it.deadline, since = it.since,
      expires = now + 60000 --[[QUEUE_TTL_MS]] * 1000, party = term.party, keys = keys,
    }
  end
  local here = key
  local position, writes = nil, {}
  local in_its_way = false
  for n = 1, #keys do
    key = keys[n]
    local index, write_ticket = enqueue(it)
    writes[n] = write_ticket
    if not index then
      in_its_way = true
      break
    end
    -- Of several queues only those count in which it waits.
    if not it.several or value() or is_kept(token) then
      local ahead = living_ahead(index)
      position = position and position < ahead and position or ahead
    end
  end
  key = here
  return in_its_way and -1 or position or 0, function()
    for n = 1, #writes do
      key = keys[n]
      writes[n]()
    end
    key = here
    if request then
      keep_request(request)
    end
    if not in_its_way then
      wait_begins(term.party, token)
    end
  end
end
