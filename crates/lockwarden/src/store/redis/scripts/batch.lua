-- Carries out the commands of the call. What nobody contends for is done right here: the same as in the
-- commands' own files, for a lock without a queue, outside a guard. Everything else is in those files.

local enter, commands
if is_settled then
  epoch, meta_run, fence, guard_ms = meta[1], run, tonumber(meta[4] or 0), 0
else
  enter, commands = machine()
  if not enter(meta) then
    return { 1 --[[STALE]] }
  end
end
short_run = sub(meta_run, 1, 16)
reply[1], reply[2], reply[3] = 0 --[[CARRIED_OUT]], epoch, now
last = 3

local has_forms, term_count, lease_count, comes_twice = byte(ARGV[6], 1, 4)
local form_count = has_forms == 1 and #KEYS - 1 or 0
local orders = { byte(ARGV[7], 1, -1) }
local terms_at = 7 + form_count
for n = 1, term_count do
  local at = terms_at + 7 * n - 6
  local wait, floor = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 4])
  terms[n] = {
    proof = ARGV[at], wait = wait, lease = tonumber(ARGV[at + 2]),
    grace = tonumber(ARGV[at + 3]), floor = floor, party = ARGV[at + 5],
    lease_text = ARGV[at + 2], how = ARGV[at + 6],
    is_plain = ARGV[at] == '' and wait ~= -3 --[[ADOPT]] and ARGV[at + 6] == '' and floor < now,
  }
end
local leases_at = terms_at + 7 * term_count

-- Nothing keeps the common cases from being done right here.
local is_easy = guard_ms == 0 and run ~= '' and KEYS[2] and comes_twice == 0
if is_easy then
  local count = listeners[session]
  if not count then
    count = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2]
    listeners[session] = count
  end
  is_easy = count > 0
end

-- What the common commands need is read for all of them together: what stands at the keys of those who
-- hold, and whether any lock has a queue. No queue at all is left when `queues_until` is over.
for n = 1, form_count do
  if ARGV[7 + n] ~= '' then
    tails[KEYS[n + 1]] = ARGV[7 + n] .. KEYS[n + 1]
  end
end
local found, no_queue = {}, queues_until <= now
do
  local held_keys, held_count, queue_names, queue_count = {}, 0, {}, 0
  local named = 1
  for i = 1, is_easy and #orders or 0, 2 do
    local word = orders[i]
    if word ~= 98 --[[HEARTBEAT]] and word ~= 101 --[[ECHO]] then
      named = named + 1
      local its_key = KEYS[named]
      if word == 114 --[[RELEASE]] or word == 110 --[[RENEW]] then
        held_count = held_count + 1
        held_keys[held_count] = its_key
      end
      if not no_queue and (word == 114 --[[RELEASE]] or word == 97 --[[ACQUIRE]]) then
        queue_count = queue_count + 1
        queue_names[queue_count] = tails[its_key] and 'lockwarden:queue' .. tails[its_key]
          or 'lockwarden:queue:{' .. its_key .. '}'
      end
    end
  end
  if is_easy then
    if held_count > 0 then
      found = call('MGET', unpack(held_keys))
    end
    no_queue = no_queue or (queue_count > 0 and call('EXISTS', unpack(queue_names)) == 0)
  end
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

-- What was released here: it is deleted together, and before anything looks at another lock (R37).
local doomed, doomed_count = {}, 0
local function delete_doomed()
  if doomed_count > 0 then
    call('DEL', unpack(doomed))
    doomed, doomed_count = {}, 0
  end
end

local at, named, held_at = leases_at + lease_count + 1, 1, 0
for i = 1, #orders, 2 do
  local word, number = orders[i], orders[i + 1]
  local token = ARGV[at]
  local its_key
  if word ~= 98 --[[HEARTBEAT]] and word ~= 101 --[[ECHO]] then
    named = named + 1
    its_key = KEYS[named]
  end
  local is_done = false
  if is_easy and word == 97 --[[ACQUIRE]] then
    local term = terms[number]
    if no_queue and term.is_plain then
      local new_fence = fence + 1
      if now > new_fence then
        new_fence = now
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
      -- NX tells a free key from one that is taken or of another type.
      local set = try('SET', its_key, (heads[#token] or head_of(token)) .. token .. fence_head
        .. char(new_fence - fence_base) .. rest, 'PX', lease, 'NX')
      if set and set.ok then
        fence, fence_grew = new_fence, true
        reply[last + 1], reply[last + 2] = 25 --[[GRANTED_AS_ASKED]], new_fence
        last = last + 2
        is_done = true
      end
    end
  elseif is_easy and (word == 114 --[[RELEASE]] or word == 110 --[[RENEW]]) then
    held_at = held_at + 1
    local held = found[held_at]
    local head = heads[#token] or head_of(token)
    local from = #head + 1
    if held and find(held, head, 1, true) == 1 and find(held, token, from, true) == from then
      if word == 114 --[[RELEASE]] then
        if no_queue then
          doomed_count = doomed_count + 1
          doomed[doomed_count] = its_key
          last = last + 1
          reply[last] = 15 --[[RELEASED]]
          is_done = true
        end
      else
        -- A renewal that changes nothing in the record. A fence takes nine bytes, whenever it is a time
        -- of our age.
        local lease = ARGV[leases_at + number]
        from = from + #token + 9
        if find(held, extensions[lease] or extension_of(lease), from, true) == from
          and try('PEXPIRE', its_key, lease) == 1 then
          reply[last + 1], reply[last + 2] = 12 --[[RENEWED]], lease
          last = last + 2
          is_done = true
        end
      end
    end
  end
  if not is_done then
    delete_doomed()
    if not commands then
      enter, commands = machine()
    end
    key = its_key
    if key and comes_twice == 0
      and (queues_until <= now or (no_queue and (word == 97 --[[ACQUIRE]] or word == 114 --[[RELEASE]]))) then
      waits[key] = false
    end
    -- Unless a command before this one has handed it to a request for several (R29).
    if is_easy and (word == 114 --[[RELEASE]] or word == 110 --[[RENEW]]) and values[key] == nil
      and (not found[held_at] or byte(found[held_at], 12) ~= 3 --[[TOGETHER]]) then
      values[key] = found[held_at]
    end
    local second, third, fourth = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    if word == 97 --[[ACQUIRE]] then
      second = terms[number]
    elseif word == 110 --[[RENEW]] then
      second = ARGV[leases_at + number]
    elseif word == 114 --[[RELEASE]] then
      second = number
    end
    local asked = { its_key }
    if comes_twice == 2 --[[SEVERAL]] then
      asked = { unpack(KEYS, 2) }
    end
    local before = last
    local ok, problem = pcall(commands[word], asked, token, second, third, fourth)
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
  if word == 109 --[[CONVERT]] then
    at = at + 4
  elseif word == 118 --[[REVOKE]] or word == 104 --[[HAND_OVER]] or word == 120 --[[EXTEND_BY_VALUE]] then
    at = at + 3
  elseif word == 99 --[[CANCEL]] or word == 108 --[[RECALL]] then
    at = at + 2
  elseif word ~= 115 --[[SHOW]] then
    at = at + 1
  end
end
delete_doomed()
if fence_grew and run ~= '' then
  call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
end
return reply
