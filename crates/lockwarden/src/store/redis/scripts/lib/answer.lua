-- Answers. The values behind each code are listed in `answer.rs`.

local function add(item)
  last = last + 1
  reply[last] = item
end

local function answer(code, first, second)
  add(code)
  if first then
    add(first)
  end
  if second then
    add(second)
  end
end

local function held_ms(since)
  local us = now - since
  return us > 0 and floor(us / 1000) or 0
end

-- A holder, as it stands now: NOBODY; FOREIGN, token, TTL (ms; -1: none); or OURS, token, TTL,
-- session, fence, lease, grace, held (ms), state, party, mode, delay (ms), rest of the minimum (ms), endless (0, 1).
local function add_holder(it)
  if not value() then
    return add(0 --[[NOBODY]])
  end
  add(it and 2 --[[OURS]] or 1 --[[FOREIGN]])
  add(it and it.token or value())
  add(it and it.ends and ceil((it.ends - now) / 1000) or call('PTTL', key))
  if it then
    add(it.session)
    add(it.fence)
    add(it.lease)
    add(it.grace)
    add(held_ms(it.since))
    add(it.state)
    add(it.party)
    add(mode_text(it.count, it.of))
    add(it.delay)
    add(it.least > now and left_until(it.least) or 0)
    add(it.endless and 1 or 0)
  end
end
