-- Set the lease of a held lock anew.
-- KEYS       the lock
-- arguments  token; lease (ms)
-- answers    RENEWED, GUARDED, NOT_HELD, UNSUBSCRIBED

local function renew(token, lease)
  if subscribers(session) == 0 then
    return answer(21 --[[UNSUBSCRIBED]])
  end
  local mine, it = owns(token)
  if not mine then
    return answer(14 --[[NOT_HELD]], absence())
  end
  if it and it.revoked == 1 then
    return answer(14 --[[NOT_HELD]], 2 --[[WAS_REVOKED]])
  end
  extend(tonumber(lease), it)
  if guard_ms > 0 then
    return answer(13 --[[GUARDED]], lease, guard_ms)
  end
  answer(12 --[[RENEWED]], lease)
end
