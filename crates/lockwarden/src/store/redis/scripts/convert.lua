-- Hold a lock in another mode from now on: shared, or alone if nobody else shares it. Nobody waits for that.
-- KEYS       the lock
-- arguments  token; mode (see `mode_of`); floor (a fence); the token from now on, where it is held alone
-- answers    CONVERTED, REFUSED, OTHER_MODE, GUARDED (to hold it alone, during the guard), NOT_HELD, UNSUBSCRIBED,
--            FLOOR_AHEAD

local function convert(_, token, to, its_floor, new_token)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  if is_ahead(tonumber(its_floor)) then
    return answer(23 --[[FLOOR_AHEAD]])
  end
  local count, of = mode_of(to)
  local owned, done = owns(new_token)
  if owned and done and done.count == count and done.of == of and not over(done) and (of ~= 0 or new_token ~= token) then
    -- What was asked for again (G6).
    return answer(29 --[[CONVERTED]], done.fence)
  end
  local mine, it = owns(token)
  if not (mine and it) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  if over(it) then
    return answer(14 --[[NOT_HELD]], over(it))
  end
  if it.of == 0 and of == -1 then
    local ends = end_of_hold(it)
    -- First, for without memory it is refused (R12).
    call('SET', key, together_value, 'PX', left_until(ends))
    call('DEL', companion('holders'), companion('shares'), companion('record'))
    values[key], records[key], certain[key] = together_value, false, true
    it.count, it.of, it.endless = count, of, false
    put_share(it, ends)
    settle()
    if guard_ms == 0 then
      -- The readers at the head enter at once (G4).
      promote()
    end
    return answer(29 --[[CONVERTED]], it.fence)
  end
  if it.of > 0 or of ~= 0 then
    return answer(28 --[[OTHER_MODE]], 0, mode_text(it.count, it.of))
  end
  -- Also where an old snapshot says that it is held alone already: others have read since (G2).
  if guard_ms > 0 then
    return answer(13 --[[GUARDED]], 0, guard_ms)
  end
  for _, other in ipairs(is_together() and holders(2) or {}) do
    if other.token ~= token then
      answer(11 --[[REFUSED]], 0, -1)
      return add_holder(other)
    end
  end
  local ends = end_of_hold(it)
  -- What other readers were given meanwhile is smaller (G2). A record of its own: the write may be refused (R12).
  local alone = {}
  for name, value_of in pairs(it) do
    alone[name] = value_of
  end
  alone.fence, alone.count, alone.of, alone.token = next_fence(tonumber(its_floor)), count, of, new_token
  alone.ends, alone.endless = nil, false
  write(alone, left_until(ends))
  call('DEL', companion('holders'), companion('shares'))
  fence, fence_grew = alone.fence, true
  answer(29 --[[CONVERTED]], alone.fence)
end
