-- Give a lock up without freeing it: it is nobody's, and ends with its lease, unless somebody who knows its value extends
-- or releases it before. What nobody else can know, or has no lease, is released instead.
-- KEYS       the lock
-- arguments  token
-- answers    LEFT, RELEASED, NOT_HELD

local function leave(keys, token)
  local mine, it = owns(token)
  if not mine then
    return answer(14 --[[NOT_HELD]], absence())
  end
  -- Without a record it is nobody's already. Or it was carried out before this (G6).
  if not it or it.state == 2 --[[IS_COOLING]] then
    return answer(31 --[[LEFT]])
  end
  if over(it) then
    return answer(14 --[[NOT_HELD]], over(it))
  end
  if it.endless or it.proof == '' then
    return release(keys, token, 0)
  end
  local ends = end_of_hold(it)
  -- As whatever cools, but for the value.
  it.state, it.least, it.delay = 2 --[[IS_COOLING]], 0, 0
  it.lease = left_until(ends)
  replace(token, it, ends)
  answer(31 --[[LEFT]])
end
