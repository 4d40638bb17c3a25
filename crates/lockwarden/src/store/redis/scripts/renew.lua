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
    if it and it.revoked == 1 then
      return answer(14 --[[NOT_HELD]], 2 --[[WAS_REVOKED]])
    end
  end
  for n = 1, #keys do
    key = keys[n]
    extend(tonumber(lease), record())
  end
  if guard_ms > 0 then
    return answer(13 --[[GUARDED]], lease, guard_ms)
  end
  answer(12 --[[RENEWED]], lease)
end
