-- Who is served next (G4, R26 to R29), as `table/queue.rs` has it.

local function tell_first(first, it)
  -- It was granted in this very command. An endless lock has no end, or one until its first renewal (R27).
  local ttl = it.endless and call('PTTL', key) or left_until(it.ends or end_of(it, it.lease))
  tell(first.session, 'F', field(key) .. field(first.token) .. field(it.token) .. number(ttl)
    .. field(it.session) .. number(it.fence) .. number(it.lease) .. number(it.grace)
    .. number(held_ms(it.since)) .. number(it.state) .. field(it.party) .. field(mode_text(it.count, it.of))
    .. number(it.delay) .. number(it.least > now and left_until(it.least) or 0) .. number(it.endless and 1 or 0))
end

-- Whoever is first now looks after the lock (G5).
local function tell_who_is_first(first)
  if not first then
    local tokens, texts = places(0, 0)
    first = texts[1] and ticket_of(tokens[1], texts[1])
  end
  local it = first and holders(1)[1]
  if it then
    tell_first(first, it)
  end
end

-- The same in the queues of these keys.
local function tell_firsts(keys)
  local here = key
  for n = 1, #keys do
    key = keys[n]
    tell_who_is_first()
  end
  key = here
end

-- Grants the lock to a ticket, and with it the others of its request, for W at most, until it is renewed; it is told by
-- message (R27). `first`: the ticket that is the first now.
local function hand(it, request, first)
  if it.lease > 3000 --[[W_MS]] then
    it.lease = 3000 --[[W_MS]]
  end
  local same = ''
  local here = key
  local granted_fence
  if request then
    for n = 1, #request.keys do
      key = request.keys[n]
      drop({ it.token })
    end
    key = request.keys[1]
    wait_ends(it)
    forget_request(it.token)
    granted_fence = grant(it, request.keys, request.modes, false)
    tell_firsts(request.keys)
  else
    wait_ends(it)
    granted_fence = grant(it, { key }, { it }, false)
    -- One message does for both where both are the same session's.
    if it.of == 0 and first then
      if first.session == it.session then
        same = first.token
      else
        tell_who_is_first(first)
      end
    end
  end
  tell(it.session, 'G', field(key) .. field(it.token) .. number(granted_fence) .. number(it.lease)
    .. field(epoch) .. field(same))
  key = here
end

local function is_among(one, keys)
  for n = 1, #keys do
    if keys[n] == one then
      return true
    end
  end
  return false
end

-- Grants a lock to those who wait for it, as long as there is room, in order: to each ticket that is alive, in time and
-- can be served (R26). `begin`: what makes it free, before the first write (R12); nil: it is free, or has room. The caller's
-- own ticket of this token, by which these keys are asked for, is not served here, but ends the search: who stands before it
-- at another of its locks comes first (R29). Gives who is still ahead of a newcomer: nil; 'asker', that ticket, behind which
-- nobody was looked at; 'somebody'; or 'more', where the bound on dropped tickets was met; and whether anybody was passed.
local function serve(token, begin, asked)
  local drops, dropped, served = {}, 0, 0
  local passed, first, ahead = nil, nil, nil
  local entered, here = {}, key
  local function write()
    if begin then
      begin()
      begin = nil
    end
    drop(drops)
    drops = {}
  end
  local tokens, texts = {}, {}
  if waits[key] ~= false then
    tokens, texts = places(0, 1)
  end
  local is_whole = false
  for at = 1, 64 --[[DROPS_PER_COMMAND]] + 1 do
    if at == 2 and #tokens == 2 and not is_whole then
      tokens, texts = places(0, 64 --[[DROPS_PER_COMMAND]])
      is_whole = true
    end
    local its_token, text = tokens[at], texts[at]
    if not its_token then
      break
    end
    local it = text and ticket_of(its_token, text)
    first = it
    if at == 64 --[[DROPS_PER_COMMAND]] + 1 then
      ahead = dropped > 0 and served == 0 and 'more' or 'somebody'
      break
    end
    local request = it and it.several and request_of(its_token)
    if not it or not lives(it) or (it.several and not request) then
      drops[#drops + 1] = its_token
      dropped = dropped + 1
      first = nil
    else
      local can
      if request then
        can = can_serve(request, begin ~= nil)
      else
        can = begin ~= nil or has_room(it.count, it.of)
      end
      if can and its_token == token and it.session == session and is_among(here, asked) then
        ahead = 'asker'
        break
      elseif can then
        if it.of ~= 0 and not is_whole then
          -- From here on the places are others.
          local more, more_texts = places(1, 64 --[[DROPS_PER_COMMAND]])
          tokens, texts = { its_token, unpack(more) }, { text, unpack(more_texts) }
          is_whole = true
        end
        if not request then
          drops[#drops + 1] = its_token
        end
        write()
        local behind = passed or (texts[at + 1] and ticket_of(tokens[at + 1], texts[at + 1]))
        for n = 1, request and #request.keys or 0 do
          if request.keys[n] ~= here and request.modes[n].of ~= 0 then
            entered[#entered + 1] = request.keys[n]
          end
        end
        hand(it, request, behind)
        first = nil
        if it.of == 0 then
          ahead = 'somebody'
          break
        end
        served = served + 1
      elseif not request then
        ahead = 'somebody'
        break
      else
        local kept = kept_for()
        if kept and kept.token == its_token then
          ahead = 'somebody'
          break
        end
        passed = passed or it
      end
    end
  end
  write()
  if served > 0 and (passed or first) then
    tell_who_is_first(passed or first)
  end
  -- Where somebody has entered whom the name was kept for, those behind enter, too (R42). After writes nothing may fail
  -- (R12): whoever is first looks again (G5).
  for n = 1, #entered do
    key = entered[n]
    pcall(serve, token, nil, asked)
  end
  key = here
  return ahead, passed ~= nil
end

-- Hands on a lock that is free by now, or has room. After writes nothing may fail (R12): whoever is first looks again
-- (G5).
local function promote()
  pcall(function()
    if may_grant() then
      serve()
    end
  end)
end

-- Takes the holders of this token away, all of them first, then hands on in the same step (G3, G4). `before`: what to do
-- in between.
local function free(keys, token, before)
  local here = key
  key = keys[1]
  if #keys == 1 and guard_ms == 0 and not is_together() then
    -- Read before the first write (R12).
    serve(nil, function()
      delete(token)
      if before then
        before()
      end
    end)
    key = here
    return
  end
  for n = 1, #keys do
    key = keys[n]
    delete(token)
  end
  if before then
    before()
  end
  for n = 1, guard_ms == 0 and #keys or 0 do
    key = keys[n]
    promote()
  end
  key = here
end

-- Takes the tickets of a token out of the queues of these keys. True: others may have waited for their sake only, for
-- they were a request's, or stood before others where a lock is held together.
local function leave_queues(keys, token, is_own)
  local here = key
  local one_of_several, one_together = false, false
  for n = 1, #keys do
    key = keys[n]
    local old = ticket(token)
    if old and is_own(old) then
      one_together = one_together or is_together()
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
  return one_of_several or one_together
end

-- Gives up waiting. Where a request for several names goes, or a writer for whom readers wait, others may have waited
-- for it only.
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
    known_waiting[key] = nil
    if score then
      call('ZADD', queue, score, new.token)
    end
    call('HSET', tickets, new.token, text)
    keep_queue(queue, tickets)
  end
end

-- The minimum and the delay of a term, in ms (R33, R43); and whether it is endless. (What has no proof is not the
-- caller's choice, and nobody else would know its value.)
local function keeping_of(term)
  local at_least, delay, endless = match(term.how, ';(%d+);(%d+);?(%d?)$')
  return tonumber(at_least or 0), tonumber(delay or 0), endless == '1' and term.proof ~= ''
end

-- Prepares a waiting caller's tickets for all keys. Reads only; gives the position (-1: no ticket), and what then
-- writes them.
local function queue_up(keys, token, term, modes)
  if term.wait <= -2 --[[NO_WAIT]] then
    return -1
  end
  local at_least, delay, endless = keeping_of(term)
  local it = {
    token = token, proof = term.proof, session = session, lease = term.lease, grace = term.grace, floor = term.floor,
    deadline = -1, since = now, party = term.party, several = #keys > 1,
    at_least = at_least, delay = delay, endless = endless,
  }
  if term.wait ~= -1 --[[FOR_EVER]] then
    it.deadline = now + term.wait * 1000
  end
  local request
  if it.several then
    local known = request_of(token)
    -- Another session's of the same token is in the way of ours (R25).
    if known and known.session ~= session then
      return -1
    end
    it.since = known and known.since or now
    request = {
      token = token, session = session, deadline = it.deadline, since = it.since,
      expires = now + 60000 --[[QUEUE_TTL_MS]] * 1000, party = term.party, keys = keys, modes = modes,
    }
  end
  local here = key
  local position, writes = nil, {}
  local in_its_way = false
  for n = 1, #keys do
    key = keys[n]
    it.count, it.of = modes[n].count, modes[n].of
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
