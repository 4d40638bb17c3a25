-- Ask the holder to give the lock up; it decides (R32). Changes nothing.
-- KEYS       the lock
-- arguments  token; party of whoever asks
-- answers    RECALLED, NOT_HELD, HELD_BY_FOREIGN

local function recall(_, token, by)
  if not holds(token) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  local it = held_by(token)
  if not it then
    return answer(41 --[[HELD_BY_FOREIGN]])
  end
  if is_nobodys(it) then
    return answer(14 --[[NOT_HELD]], absence())
  end
  tell(it.session, 'L', field(key) .. field(token) .. field(by))
  answer(40 --[[RECALLED]])
end
