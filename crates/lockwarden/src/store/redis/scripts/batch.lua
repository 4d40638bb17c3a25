-- Carries out the commands of the call. What nobody contends for is done right here: the same as in the
-- commands' own files, for a lock without a queue, outside a guard. Everything else is in those files.

-- How many arguments each command has.
local arity = { acquire = 2, renew = 2, release = 1, cancel = 2, revoke = 3, show = 0, beat = 1, echo = 1 }

local commands
local function machinery()
  commands = commands or machine()
  return commands
end

local meta = call('HMGET', KEYS[1], 'epoch', 'run', 'guard', 'fence')
if meta[1] and meta[2] == run and ARGV[3] == '0' and tonumber(meta[3] or 0) <= now then
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

-- The commands, by their order: where they stand, their locks' keys, the forms of the companions'
-- names, and the names of the records.
local places, keys, forms, record_names = {}, {}, {}, {}
local steps = 0
-- Read ahead for all common commands together: keys and records, and whether any of them has a queue.
local ahead, queues = {}, {}
local read, queue_count = 0, 0
do
  local at, named = commands_at, 1
  local word = ARGV[at]
  while word do
    steps = steps + 1
    places[steps] = at
    if word ~= 'beat' and word ~= 'echo' then
      named = named + 1
      local its_key = KEYS[named]
      keys[steps] = its_key
      local its_form = plain and '' or ARGV[forms_at + named - 2]
      forms[steps] = its_form
      if word == 'acquire' or word == 'release' or word == 'renew' then
        local tail = its_form == '' and ':{' .. its_key .. '}' or its_form .. its_key
        local record_name = 'lockwarden:record' .. tail
        record_names[steps] = record_name
        ahead[read + 1], ahead[read + 2] = its_key, record_name
        read = read + 2
        if word ~= 'renew' then
          queue_count = queue_count + 1
          queues[queue_count] = 'lockwarden:queue' .. tail
        end
      end
    end
    at = at + 1 + arity[word]
    word = ARGV[at]
  end
end
if read > 0 then
  local found = call('MGET', unpack(ahead))
  for i = 1, read, 2 do
    values[ahead[i]], records[ahead[i]] = found[i], found[i + 1]
  end
end
-- No lock of the call has a queue, unless one comes to be on the way (`waits`).
local quiet = queue_count > 0 and call('EXISTS', unpack(queues)) == 0
local easy = guard_ms == 0 and run ~= '' and read > 0
if easy then
  listeners[session] = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2]
  easy = listeners[session] > 0
end

-- What was released here and is deleted together, before anything else looks at it.
local doomed, doomed_count, is_doomed = {}, 0, {}
local function delete_doomed()
  if doomed_count > 0 then
    call('DEL', unpack(doomed))
    doomed, doomed_count, is_doomed = {}, 0, {}
  end
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
  local text = pack(0, tonumber(lease), run)
  extensions[lease] = text
  return text
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
  local at = places[step]
  local word, token = ARGV[at], ARGV[at + 1]
  local its_key, record_name = keys[step], record_names[step]
  local done = false
  local holder = values[its_key or '']
  if easy and record_name then
    local idle = quiet and not waits[its_key]
    if word == 'acquire' then
      local term = terms[ARGV[at + 2]]
      if idle and not holder and term.floor <= now then
        if is_doomed[its_key] then
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
          local tail = term.tail
          if not tail then
            tail = (extensions[lease] or extension(lease)) .. pack(term.proof, now, term.grace, term.party)
            term.tail = tail
          end
          if new_fence - fence_base > 255 then
            fence_base = new_fence - new_fence % 256
            fence_head = sub(pack(fence_base + 255), 1, -2)
          end
          local text = own_head .. (token_heads[#token] or token_head(token)) .. token
            .. fence_head .. char(new_fence - fence_base) .. tail
          call('SET', record_name, text, 'PX', lease)
          values[its_key], records[its_key] = token, text
          reply[last + 1], reply[last + 2], reply[last + 3] = 10 --[[GRANTED]], new_fence, lease
          last = last + 3
          done = true
        end
      end
    elseif holder == token then
      local text = records[its_key]
      if word == 'release' then
        if idle and (not text or sub(text, 1, #own_head) == own_head) then
          doomed[doomed_count + 1], doomed[doomed_count + 2] = its_key, record_name
          doomed_count = doomed_count + 2
          is_doomed[its_key] = true
          values[its_key], records[its_key] = false, false
          last = last + 1
          reply[last] = 15 --[[RELEASED]]
          done = true
        end
      elseif text then
        -- A renewal that changes nothing in the record.
        local lease = ARGV[at + 2]
        local head = own_head .. (token_heads[#token] or token_head(token)) .. token
        local tail = extensions[lease] or extension(lease)
        -- A fence takes nine bytes, whenever it is a time of our age.
        local from = #head + 10
        if sub(text, 1, #head) == head and sub(text, from, from + #tail - 1) == tail then
          local set = try('PEXPIRE', its_key, lease)
          if set == 1 then
            call('PEXPIRE', record_name, lease)
            reply[last + 1], reply[last + 2] = 12 --[[RENEWED]], lease
            last = last + 2
            done = true
          end
        end
      end
    end
  end
  if not done then
    delete_doomed()
    local before = last
    key, form = its_key, forms[step]
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
delete_doomed()
if fence_grew and run ~= '' then
  call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
end
return reply
