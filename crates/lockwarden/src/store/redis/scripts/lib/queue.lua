-- The queue of a lock: a sorted set of tokens, by a number that grows with each arrival, and a hash of
-- tickets by token. Both expire together, 60 s after the last recheck (R28).
--
-- ticket   packed: schema, proof, session, lease (ms), grace (ms), floor, deadline (us; -1: none),
--          since (us), party

local function ticket_of(token, text)
  local it = { token = token }
  local schema
  schema, it.proof, it.session, it.lease, it.grace, it.floor, it.deadline, it.since, it.party =
    unpack_packed(text)
  known_schema(schema)
  return it
end

-- The ticket of a token, or false.
local function ticket(token)
  local text = waits[key] ~= false and call('HGET', companion('tickets'), token)
  return text and ticket_of(token, text)
end

-- The queue stays for 60 s from now on. A self-test leaves meta alone, and its queue goes at once.
local function keep_queue(queue, tickets)
  if run ~= '' then
    queues_may_stay()
  end
  call('PEXPIRE', queue, 60000 --[[QUEUE_TTL_MS]])
  call('PEXPIRE', tickets, 60000 --[[QUEUE_TTL_MS]])
end

-- Where an owner and its parts wait (R37): a hash, whose fields are packed: schema, key, its companions' tail, token
-- of the ticket. Forgotten with the queue; what stands here counts only while the ticket stands in its queue.

-- The owner in a party's text (`wire.rs` writes it first), or nil.
local function owner_of(party)
  return match(party, '^%["([%w%._:@/%+=%-]+)"')
end

-- By prefix, as meta: a cycle is one of one table.
local function waits_key(owner)
  return 'lockwarden:wait' .. sub(KEYS[1], 16) .. '#' .. owner
end

-- What stands in the place of our hashes is passed over; but a self-test names what a user may not do (R10).
local look = run == '' and call or try

-- The hashes of the owner and of every one that it is a part of, and the field.
local function waits_of(party, token)
  local owner, names, from = owner_of(party), {}, 1
  while owner and from do
    local slash = find(owner, '/', from, true)
    names[#names + 1] = waits_key(slash and sub(owner, 1, slash - 1) or owner)
    from = slash and slash + 1
  end
  return names, pack(1 --[[SCHEMA]], key, tails[key] or '', token)
end

-- After writes nothing may fail (R12): if something else stands there, it is not ours, and stays as it is.
local function wait_begins(party, token)
  local names, place = waits_of(party, token)
  for n = 1, #names do
    local count = look('HLEN', names[n])
    if type(count) == 'number' then
      -- Places of the dead are not removed one by one: those who live come back at their next recheck.
      if count >= 64 --[[MOST_PLACES]] and not try('HGET', names[n], place) then
        try('DEL', names[n])
      end
      try('HSET', names[n], place, '')
      try('PEXPIRE', names[n], 60000 --[[QUEUE_TTL_MS]])
    end
  end
end

-- Nor here.
local function wait_ends(it)
  local names, place = waits_of(it.party, it.token)
  for n = 1, #names do
    try('HDEL', names[n], place)
  end
end

local function drop(tokens)
  if #tokens > 0 then
    call('ZREM', companion('queue'), unpack(tokens))
    call('HDEL', companion('tickets'), unpack(tokens))
  end
end

-- The places from..upto of the queue: their tokens and their packed tickets (false: lost).
local function places(from, upto)
  local tokens = call('ZRANGE', companion('queue'), from, upto)
  if #tokens == 0 then
    return tokens, tokens
  end
  return tokens, call('HMGET', companion('tickets'), unpack(tokens))
end

-- Looks for the first ticket that is alive and in time (R26). Reads only (R12). Gives what to `drop`
-- (the ticket itself included), the ticket or nil, the one behind it or nil, and whether the bound on
-- dropped tickets was met first.
local function pick()
  local drops = {}
  if waits[key] == false then
    return drops
  end
  local tokens, texts = places(0, 1)
  for at = 1, 64 --[[DROPS_PER_COMMAND]] do
    if at == 2 then
      tokens, texts = places(0, 64 --[[DROPS_PER_COMMAND]])
    end
    local token, text = tokens[at], texts[at]
    if not token then
      return drops
    end
    drops[at] = token
    local it = text and ticket_of(token, text)
    if it and (it.deadline < 0 or it.deadline > now) and subscribers(it.session) > 0 then
      local behind = texts[at + 1] and ticket_of(tokens[at + 1], texts[at + 1])
      return drops, it, behind
    end
  end
  return drops, nil, nil, tokens[64 --[[DROPS_PER_COMMAND]] + 1] ~= nil
end

-- Grants the lock to a ticket that `pick` found. One of the asker gets the whole lease, for its reply
-- says so; another gets W at most and is told by message (R27).
local function hand(it, behind, to_asker)
  if not to_asker and it.lease > 3000 --[[W_MS]] then
    it.lease = 3000 --[[W_MS]]
  end
  wait_ends(it)
  local granted_fence = grant(it)
  local first = ''
  -- Whoever is first now looks after the new holder (G5). One message does for both where both are the
  -- same session's.
  if behind and not to_asker and behind.session == it.session then
    first = behind.token
  elseif behind then
    tell(behind.session, 'F', field(key) .. field(behind.token) .. field(it.token) .. number(it.lease)
      .. field(it.session) .. number(granted_fence) .. number(it.lease) .. number(it.grace)
      .. field('0') .. field('0') .. field(it.party))
  end
  if not to_asker then
    tell(it.session, 'G', field(key) .. field(it.token) .. number(granted_fence) .. number(it.lease)
      .. field(epoch) .. field(first))
  end
end

-- Deletes the holder, then hands on in the same step (G3, G4). `before`: what to do in between.
local function free(before)
  local drops, it, behind = {}, nil, nil
  if guard_ms == 0 then
    drops, it, behind = pick()
  end
  delete()
  if before then
    before()
  end
  drop(drops)
  if it then
    hand(it, behind, false)
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

-- Prepares a waiting caller's ticket, or its refreshing; its place stays (R28, G6). Reads only (R12);
-- gives the position (-1: no ticket), and what then writes it.
local function queue_up(token, term)
  if term.wait == -2 --[[NO_WAIT]] then
    return -1
  end
  local queue, tickets = companion('queue'), companion('tickets')
  local deadline = -1
  if term.wait ~= -1 --[[FOR_EVER]] then
    deadline = now + term.wait * 1000
  end
  local text = call('HGET', tickets, token)
  local index = text and call('ZRANK', queue, token)
  local score
  local since = now
  local position
  if index then
    local old = ticket_of(token, text)
    if old.session ~= session or old.proof ~= term.proof then
      -- Another session's ticket of the same value is in the way of ours (R25).
      return -1, function()
        keep_queue(queue, tickets)
      end
    end
    since = old.since
    -- A repeated request changes its deadline and nothing else.
    text = pack(1 --[[SCHEMA]], old.proof, session, old.lease, old.grace, old.floor, deadline, since, old.party)
    position = living_ahead(index)
  else
    local newest = call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
    score = newest[2] and newest[2] + 1 or 0
    text = pack(1 --[[SCHEMA]], term.proof, session, term.lease, term.grace, term.floor,
      deadline, since, term.party)
    position = living_ahead(newest[1] and call('ZCARD', queue) or 0)
  end
  return position, function()
    waits[key] = true
    if score then
      call('ZADD', queue, score, token)
    end
    call('HSET', tickets, token, text)
    keep_queue(queue, tickets)
    wait_begins(term.party, token)
  end
end
