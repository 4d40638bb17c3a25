-- Change when a lock ends, whoever holds it: only the key's value is compared, as the libraries do that the drop-ins stand
-- in for. What another session believes in never gets shorter (R18).
-- KEYS       the lock
-- arguments  token; for how long (ms); what that is: `add` to what is left, `replace` that, or `set` it, also where there
--            is no expiry
-- answers    EXTENDED, ENDLESS, NOT_HELD, UNSUBSCRIBED

local function extend_by_value(_, token, ms, how)
  -- It may give belief, as a renewal does.
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  local it = not is_together() and held_by(token) or nil
  if is_together() or not holds(token) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  -- What was left is nobody's, and anybody's who knows its value.
  if it and it.state ~= 2 --[[IS_COOLING]] and over(it) then
    return answer(14 --[[NOT_HELD]], over(it))
  end
  local ttl = call('PTTL', key)
  local left = nil
  if ttl >= 0 then
    left = ttl - (it and it.delay or 0)
    if left <= 0 then
      -- Only the delay after a crash keeps it (R43).
      return answer(14 --[[NOT_HELD]], 1 --[[TAKEN]])
    end
  elseif how ~= 'set' then
    return answer(33 --[[ENDLESS]])
  end
  local is_held = it and it.state == 0 --[[IS_HELD]]
  local own = is_held and it.session == session
  local lease = tonumber(ms)
  if how == 'add' then
    lease = left + lease
  end
  -- Another one's belief: it hears of nothing, and must not end early (R18).
  if is_held and not own and lease < (left or it.lease) then
    lease = left or it.lease
  end
  local ends = it and left_until(end_of(it, lease)) or lease
  -- First what needs no memory: what follows a write is not refused for the lack of it.
  expire_in(ends, it)
  if it then
    -- What it results in (R15).
    it.lease, it.endless = lease, false
    if own then
      it.run = short_run
    end
    write(it, ends)
  end
  answer(32 --[[EXTENDED]], lease, own and 1 or 0)
  add(guard_ms)
end
