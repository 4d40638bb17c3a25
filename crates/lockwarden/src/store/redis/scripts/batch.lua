-- Carries out the commands of the call. What nobody contends for is done right here: the same as in the
-- commands' own files, for a lock without a queue, outside a guard. Everything else is in those files.

-- How many arguments each command has.
local arity = { acquire = 2, renew = 2, release = 1, cancel = 2, revoke = 3, show = 0, beat = 1, echo = 1 }

local commands
local function machinery()
  commands = commands or machine()
  return commands
end

if is_settled then
  epoch, meta_run, fence, guard_ms = meta[1], run, tonumber(meta[4] or 0), 0
elseif not machinery().enter(meta) then
  return { 1 --[[STALE]] }
end
reply[1], reply[2], reply[3] = 0 --[[CARRIED_OUT]], epoch, now
last = 3

local forms_at = 6
local terms_at = forms_at + tonumber(ARGV[5])
local plain = terms_at == forms_at
local commands_at = terms_at + 1 + 6 * tonumber(ARGV[terms_at])
local number_of_term = 0
for at = terms_at + 1, commands_at - 1, 6 do
  number_of_term = number_of_term + 1
  terms[tostring(number_of_term)] = {
    proof = ARGV[at], wait = tonumber(ARGV[at + 1]), lease = tonumber(ARGV[at + 2]),
    grace = tonumber(ARGV[at + 3]), floor = tonumber(ARGV[at + 4]), party = ARGV[at + 5],
    lease_text = ARGV[at + 2],
  }
end

-- Where each command stands, and the number of its lock; for each lock its key, and what stands behind
-- the kind in its companions' names. What the common commands need is read for all of them together:
-- keys, records of those that are held, and whether any of them has a queue.
local places, slots = {}, {}
local slot_of, keys, tails = {}, {}, {}
local steps, slot_count = 0, 0
local record_names, record_slots, record_count = {}, {}, 0
local queue_names, queue_count = {}, 0
do
  local at, named = commands_at, 1
  local word = ARGV[at]
  while word do
    steps = steps + 1
    places[steps] = at
    if word ~= 'beat' and word ~= 'echo' then
      named = named + 1
      local its_key = KEYS[named]
      local its_slot = slot_of[its_key]
      if not its_slot then
        slot_count = slot_count + 1
        its_slot = slot_count
        slot_of[its_key], keys[its_slot] = its_slot, its_key
        local its_form = plain and '' or ARGV[forms_at + named - 2]
        if its_form ~= '' then
          tails[its_slot] = its_form .. its_key
        end
      end
      slots[steps] = its_slot
      if word == 'release' or word == 'renew' then
        local tail = tails[its_slot]
        record_count = record_count + 1
        record_names[record_count] = tail and 'lockwarden:record' .. tail
          or 'lockwarden:record:{' .. its_key .. '}'
        record_slots[record_count] = its_slot
      end
      if word == 'release' or word == 'acquire' then
        local tail = tails[its_slot]
        queue_count = queue_count + 1
        queue_names[queue_count] = tail and 'lockwarden:queue' .. tail
          or 'lockwarden:queue:{' .. its_key .. '}'
      end
    end
    at = at + 1 + arity[word]
    word = ARGV[at]
  end
end
if slot_count > 0 then
  values = call('MGET', unpack(keys))
end
if record_count > 0 then
  local found = call('MGET', unpack(record_names))
  for i = 1, record_count do
    records[record_slots[i]] = found[i]
  end
end
-- No lock of the call has a queue, unless one comes to be on the way (`waits`).
local quiet = queue_count > 0 and call('EXISTS', unpack(queue_names)) == 0
-- Nothing keeps the common cases from being done right here.
local easy = guard_ms == 0 and run ~= '' and slot_count > 0
if easy then
  listeners[session] = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2]
  easy = listeners[session] > 0
end

-- What was released here: it is deleted together, and before anything else looks at it.
local doomed, doomed_count, is_doomed = {}, 0, {}
local function delete_doomed()
  call('DEL', unpack(doomed))
  doomed, doomed_count, is_doomed = {}, 0, {}
end

-- Packing costs more than joining what is packed already. A token is packed as a head, which depends on
-- its length, and itself; a fence of our age as nine bytes, of which those that are granted together
-- differ in the last; what an extension leaves in a record is the same for all with one lease.
local token_heads, extensions = {}, {}
local function token_head(token)
  local head = sub(pack(token), 1, -#token - 1)
  token_heads[#token] = head
  return head
end
local fence_base, fence_head = -256, nil
local function extension(lease)
  local text = pack(0, tonumber(lease), meta_run)
  extensions[lease] = text
  return text
end

for step = 1, steps do
  local at, its_slot = places[step], slots[step]
  local word, token = ARGV[at], ARGV[at + 1]
  local done = false
  if easy and its_slot then
    local its_key, holder, tail = keys[its_slot], values[its_slot], tails[its_slot]
    local idle = quiet and not waits[its_slot]
    if word == 'acquire' then
      local term = terms[ARGV[at + 2]]
      if idle and not holder and term.floor <= now then
        if is_doomed[its_slot] then
          delete_doomed()
        end
        local new_fence = fence + 1
        if now > new_fence then
          new_fence = now
        end
        if term.floor >= new_fence then
          new_fence = term.floor + 1
        end
        -- As text: numbers cost the server a conversion each.
        local lease = term.lease_text
        -- NX tells a free key from one of another type.
        local set = try('SET', its_key, token, 'PX', lease, 'NX')
        if set and set.ok then
          fence, fence_grew = new_fence, true
          local tail_of_record = term.tail
          if not tail_of_record then
            tail_of_record = (extensions[lease] or extension(lease))
              .. pack(term.proof, now, term.grace, term.party)
            term.tail = tail_of_record
          end
          if new_fence - fence_base > 255 then
            fence_base = new_fence - new_fence % 256
            fence_head = sub(pack(fence_base + 255), 1, -2)
          end
          local text = own_head .. (token_heads[#token] or token_head(token)) .. token
            .. fence_head .. char(new_fence - fence_base) .. tail_of_record
          call('SET', tail and 'lockwarden:record' .. tail or 'lockwarden:record:{' .. its_key .. '}',
            text, 'PX', lease)
          values[its_slot], records[its_slot] = token, text
          reply[last + 1], reply[last + 2] = 25 --[[GRANTED_AS_ASKED]], new_fence
          last = last + 2
          done = true
        end
      end
    elseif holder == token then
      local text = records[its_slot]
      if word == 'release' then
        if idle and (not text or sub(text, 1, #own_head) == own_head) then
          doomed[doomed_count + 1] = its_key
          doomed[doomed_count + 2] = tail and 'lockwarden:record' .. tail
            or 'lockwarden:record:{' .. its_key .. '}'
          doomed_count = doomed_count + 2
          is_doomed[its_slot] = true
          values[its_slot], records[its_slot] = false, false
          last = last + 1
          reply[last] = 15 --[[RELEASED]]
          done = true
        end
      elseif word == 'renew' and text then
        -- A renewal that changes nothing in the record.
        local lease = ARGV[at + 2]
        local head = own_head .. (token_heads[#token] or token_head(token)) .. token
        local extended = extensions[lease] or extension(lease)
        -- A fence takes nine bytes, whenever it is a time of our age.
        local from = #head + 10
        if sub(text, 1, #head) == head and sub(text, from, from + #extended - 1) == extended then
          local set = try('PEXPIRE', its_key, lease)
          if set == 1 then
            call('PEXPIRE', tail and 'lockwarden:record' .. tail
              or 'lockwarden:record:{' .. its_key .. '}', lease)
            reply[last + 1], reply[last + 2] = 12 --[[RENEWED]], lease
            last = last + 2
            done = true
          end
        end
      end
    end
  end
  if not done then
    if doomed_count > 0 then
      delete_doomed()
    end
    local before = last
    slot, key, form = its_slot, keys[its_slot or 0], ''
    local tail = tails[its_slot or 0]
    if tail then
      form = sub(tail, 1, -#key - 1)
    end
    local ok, problem = pcall(machinery()[word], token, ARGV[at + 2], ARGV[at + 3])
    if not ok then
      -- This command's answer; the next one runs all the same (R12).
      for n = last, before + 1, -1 do
        reply[n] = nil
      end
      if type(problem) == 'table' then
        problem = problem.err
      end
      reply[before + 1], reply[before + 2] = 24 --[[FAILED]], tostring(problem)
      last = before + 2
    end
  end
end
if doomed_count > 0 then
  delete_doomed()
end
if fence_grew and run ~= '' then
  call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
end
return reply
