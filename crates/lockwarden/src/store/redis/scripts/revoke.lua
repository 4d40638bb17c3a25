-- Take the lock away from its holder, on proof of death or by an operator's order (R32).
-- KEYS       the lock
-- arguments  token; session (empty: whoever's); delayed (0, 1)
-- answers    REVOKED, NOT_HELD, GUARDED (delayed, during the guard)

local function revoke(keys, token, meant, delayed)
  local it = held_by(token)
  -- A dead session is no proof about what is nobody's.
  if not holds(token) or (meant ~= '' and not (it and it.session == meant and not is_nobodys(it))) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  local function notify(after)
    if it then
      tell(it.session, 'R', field(key) .. field(token) .. number(after))
    end
  end
  -- What died may have to be waited for all the same (R33, R43).
  local crash_ends = it and meant ~= '' and it.state == 0 --[[IS_HELD]] and end_of(it, 0) or 0
  if delayed == '0' and crash_ends > now then
    cool(token, crash_ends)
    local after = left_until(crash_ends)
    notify(after)
    return answer(17 --[[REVOKED]], after)
  end
  if delayed == '0' then
    free(keys, token, function()
      notify(0)
    end)
    return answer(17 --[[REVOKED]], 0)
  end
  if guard_ms > 0 then
    -- Nothing is shortened during the guard (R6).
    return answer(13 --[[GUARDED]], 0, guard_ms)
  end
  if it and is_together() then
    local ends = holders_end(token)
    local most = now + 3000 --[[W_MS]] * 1000
    if ends > most then
      ends = most
    end
    -- First, as below.
    settle()
    it.state = 1 --[[IS_REVOKED]]
    put_share(it, ends)
    settle()
    local after = ceil((ends - now) / 1000)
    notify(after)
    return answer(17 --[[REVOKED]], after)
  end
  -- A number that is not positive must never reach PEXPIRE or SET: it would delete the key (R14).
  local after = call('PTTL', key)
  if after < 0 or after > 3000 --[[W_MS]] then
    after = 3000 --[[W_MS]]
  end
  local left = after > 0 and after or 1
  -- First, for it needs no memory, and what follows a write is not refused for the lack of it.
  call('PEXPIRE', key, left)
  if it then
    it.state, it.endless = 1 --[[IS_REVOKED]], false
    write(it, left)
  end
  notify(after)
  answer(17 --[[REVOKED]], after)
end
