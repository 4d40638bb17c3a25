-- Carries out the commands of the call. What nobody contends for is done right here: the same as in the
-- commands' own files, for a lock without a queue, outside a guard. Everything else is in those files.

-- From a command to the next: its word and its arguments.
local function width(word)
  return ({ cancel = 3, revoke = 4, show = 1, beat = 2, echo = 2 })[word]
end

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
short_run = sub(meta_run, 1, 16)
reply[1], reply[2], reply[3] = 0 --[[CARRIED_OUT]], epoch, now
last = 3

local forms_at = 7
local terms_at = forms_at + tonumber(ARGV[6])
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

-- What the common commands need is read for all of them together: what stands at the keys of those who
-- hold, and whether any lock has a queue.
local queue_names, queue_count = {}, 0
local held_keys, held_count = {}, 0
do
  local at, named = commands_at, 1
  local word = ARGV[at]
  while word do
    if word ~= 'beat' and word ~= 'echo' then
      named = named + 1
      local its_key = KEYS[named]
      local tail = not plain and ARGV[forms_at + named - 2]
      if tail and tail ~= '' then
        tails[its_key] = tail .. its_key
      end
      if word == 'release' or word == 'acquire' then
        queue_count = queue_count + 1
        queue_names[queue_count] = tails[its_key] and 'lockwarden:queue' .. tails[its_key]
          or 'lockwarden:queue:{' .. its_key .. '}'
      end
      if word == 'release' or word == 'renew' then
        held_count = held_count + 1
        held_keys[held_count] = its_key
      end
    end
    at = at + ((word == 'acquire' or word == 'renew') and 3 or word == 'release' and 2 or width(word))
    word = ARGV[at]
  end
end
if held_count > 0 then
  local found = call('MGET', unpack(held_keys))
  for i = 1, held_count do
    values[held_keys[i]] = found[i]
  end
end
-- No lock of the call has a queue, unless one comes to be on the way (`waits`).
local quiet = queue_count > 0 and call('EXISTS', unpack(queue_names)) == 0
-- Nothing keeps the common cases from being done right here.
local easy = guard_ms == 0 and run ~= '' and KEYS[2]
if easy then
  local count = listeners[session]
  if not count then
    count = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2]
    listeners[session] = count
  end
  easy = count > 0
end

-- What was released here: it is deleted together, and before anything else looks at it.
local doomed, doomed_count = {}, 0
local function delete_doomed()
  call('DEL', unpack(doomed))
  doomed, doomed_count = {}, 0
end

-- Packing costs more than joining what is packed already, and every new string costs by its length. How
-- a value begins that the caller wrote depends on the length of its token only; a fence of our age is
-- packed as nine bytes, of which those that are granted together differ in the last; what an extension
-- leaves in a record is the same for all with one lease.
local heads, extensions = {}, {}
local function head_of(token)
  local head = own_head .. sub(pack(token), 1, -#token - 1)
  heads[#token] = head
  return head
end
local fence_base, fence_head = -256, nil
local function extension_of(lease)
  local text = pack(0, tonumber(lease), short_run)
  extensions[lease] = text
  return text
end

local at, named = commands_at, 1
local word = ARGV[at]
while word do
  local token = ARGV[at + 1]
  local its_key
  if word ~= 'beat' and word ~= 'echo' then
    named = named + 1
    its_key = KEYS[named]
  end
  local done = false
  if easy and word == 'acquire' then
    local term = terms[ARGV[at + 2]]
    if quiet and not waits[its_key] and not values[its_key] and term.floor <= now and term.proof == '' then
      local new_fence = fence + 1
      if now > new_fence then
        new_fence = now
      end
      if term.floor >= new_fence then
        new_fence = term.floor + 1
      end
      -- As text: numbers cost the server a conversion each.
      local lease = term.lease_text
      local rest = term.rest
      if not rest then
        rest = (extensions[lease] or extension_of(lease)) .. pack('', now, term.grace, term.party)
        term.rest = rest
      end
      if new_fence - fence_base > 255 then
        fence_base = new_fence - new_fence % 256
        fence_head = sub(pack(fence_base + 255), 1, -2)
      end
      local text = (heads[#token] or head_of(token)) .. token .. fence_head .. char(new_fence - fence_base)
        .. rest
      -- NX tells a free key from one that is taken, of another type, or released in this very call.
      local set = try('SET', its_key, text, 'PX', lease, 'NX')
      if set and set.ok then
        fence, fence_grew = new_fence, true
        values[its_key], records[its_key] = text, nil
        reply[last + 1], reply[last + 2] = 25 --[[GRANTED_AS_ASKED]], new_fence
        last = last + 2
        done = true
      end
    end
  elseif easy and (word == 'release' or word == 'renew') then
    local held = values[its_key]
    local head = heads[#token] or head_of(token)
    local from = #head + 1
    if held and find(held, head, 1, true) == 1 and find(held, token, from, true) == from then
      if word == 'release' then
        if quiet and not waits[its_key] then
          doomed_count = doomed_count + 1
          doomed[doomed_count] = its_key
          values[its_key], records[its_key] = false, nil
          last = last + 1
          reply[last] = 15 --[[RELEASED]]
          done = true
        end
      else
        -- A renewal that changes nothing in the record. A fence takes nine bytes, whenever it is a time
        -- of our age.
        local lease = ARGV[at + 2]
        from = from + #token + 9
        if find(held, extensions[lease] or extension_of(lease), from, true) == from
          and try('PEXPIRE', its_key, lease) == 1 then
          reply[last + 1], reply[last + 2] = 12 --[[RENEWED]], lease
          last = last + 2
          done = true
        end
      end
    end
  end
  if not done then
    if doomed_count > 0 then
      delete_doomed()
    end
    local before = last
    key = its_key
    if quiet and waits[key] == nil and (word == 'acquire' or word == 'release') then
      waits[key] = false
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
  at = at + ((word == 'acquire' or word == 'renew') and 3 or word == 'release' and 2 or width(word))
  word = ARGV[at]
end
if doomed_count > 0 then
  delete_doomed()
end
if fence_grew and run ~= '' then
  call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
end
return reply
