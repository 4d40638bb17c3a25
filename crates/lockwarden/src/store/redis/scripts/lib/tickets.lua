-- The queue of a lock: a sorted set of tokens, by a number that grows with each arrival, and a hash of
-- tickets by token. Both expire together, 60 s after the last recheck (R28).
--
-- ticket   packed: schema, proof, session, lease (ms), grace (ms), floor, deadline (us; -1: none), since (us), party;
--          of another schema where it is one of several (see `requests.lua`), not exclusive, has a minimum or a delay,
--          or is endless, for not every reader may take it then: of several (0, 1), the mode (see `together.lua`):
--          count, of; the minimum (ms), the delay (ms), endless (0, 1)

local function ticket_of(token, text)
  local it = { token = token }
  local schema
  schema, it.proof, it.session, it.lease, it.grace, it.floor, it.deadline, it.since, it.party, it.several,
    it.count, it.of, it.at_least, it.delay, it.endless = unpack_packed(text)
  known_schema(schema, 2 --[[LONG_TICKET]])
  it.several, it.count, it.of = it.several == 1, it.count or 0, it.of or 0
  it.at_least, it.delay, it.endless = it.at_least or 0, it.delay or 0, it.endless == 1
  return it
end

local function text_of(it)
  if it.several or it.of ~= 0 or it.at_least > 0 or it.delay > 0 or it.endless then
    return pack(2 --[[LONG_TICKET]], it.proof, it.session, it.lease, it.grace, it.floor, it.deadline, it.since,
      it.party, it.several and 1 or 0, it.count, it.of, it.at_least, it.delay, it.endless and 1 or 0)
  end
  return pack(1 --[[SCHEMA]], it.proof, it.session, it.lease, it.grace, it.floor, it.deadline, it.since, it.party)
end

-- Does whoever has this ticket, or made this request, live and wait still?
local function lives(it)
  return (it.deadline < 0 or it.deadline > now) and subscribers(it.session) > 0
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

-- What the searches of this call have found out: the places of an owner, by their hash; and who waits at a key, by token.
-- Many searches of one call go the same ways. Forgotten by whatever changes it.
local known_places, known_waiting = {}, {}

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
    known_places[names[n]] = nil
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
    known_places[names[n]] = nil
    try('HDEL', names[n], place)
  end
end

local function drop(tokens)
  if #tokens > 0 then
    known_waiting[key] = nil
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
