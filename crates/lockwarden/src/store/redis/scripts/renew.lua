-- Set the lease of a held lock anew; of several all, or none.
-- KEYS       the lock, or the locks
-- arguments  token; lease (ms)
-- answers    RENEWED, GUARDED, NOT_HELD, UNSUBSCRIBED

local function renew(keys, token, lease)
  look_at(keys)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  for n = 1, #keys do
    key = keys[n]
    local mine, it = owns(token)
    if not mine then
      return answer(14 --[[NOT_HELD]], absence())
    end
    if it and over(it) then
      return answer(14 --[[NOT_HELD]], over(it))
    end
  end
  for n = 1, #keys do
    key = keys[n]
    extend(tonumber(lease), held_by(token))
  end
  if guard_ms > 0 then
    return answer(13 --[[GUARDED]], lease, guard_ms)
  end
  for n = 1, #keys do
    key = keys[n]
    -- One command serves so many at most: those whom it served see to the rest.
    if is_together() then
      promote()
    end
  end
  answer(12 --[[RENEWED]], lease)
end
