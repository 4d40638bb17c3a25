-- Hold a lock in another mode from now on: shared, or alone if nobody else shares it. Nobody waits for that.
-- KEYS       the lock
-- arguments  token; mode (see `mode_of`); floor (a fence)
-- answers    CONVERTED, REFUSED, OTHER_MODE, GUARDED (to hold it alone, during the guard), NOT_HELD, UNSUBSCRIBED

local function convert(_, token, to, its_floor)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  local mine, it = owns(token)
  if not (mine and it) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  if over(it) then
    return answer(14 --[[NOT_HELD]], over(it))
  end
  local count, of = mode_of(to)
  if it.count == count and it.of == of then
    -- What was asked for again (G6).
    return answer(29 --[[CONVERTED]], it.fence)
  end
  local ends = end_of_hold(it)
  if it.of == 0 and of == -1 then
    -- First, for without memory it is refused (R12).
    call('SET', key, together_value, 'PX', left_until(ends))
    call('DEL', companion('holders'), companion('shares'), companion('record'))
    values[key], records[key], certain[key] = together_value, false, true
    it.count, it.of = count, of
    put_share(it, ends)
    settle()
    if guard_ms == 0 then
      -- The readers at the head enter at once (G4).
      promote()
    end
    return answer(29 --[[CONVERTED]], it.fence)
  end
  if it.of ~= -1 or of ~= 0 then
    return answer(28 --[[OTHER_MODE]], 0, mode_text(it.count, it.of))
  end
  if guard_ms > 0 then
    return answer(13 --[[GUARDED]], 0, guard_ms)
  end
  for _, other in ipairs(holders(2)) do
    if other.token ~= token then
      answer(11 --[[REFUSED]], 0, -1)
      return add_holder(other)
    end
  end
  -- What other readers were given meanwhile is smaller (G2).
  it.fence, it.count, it.of = next_fence(tonumber(its_floor)), count, of
  write(it, left_until(ends))
  call('DEL', companion('holders'), companion('shares'))
  fence, fence_grew = it.fence, true
  answer(29 --[[CONVERTED]], it.fence)
end
