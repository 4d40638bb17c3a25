-- Give the lock back and hand it to the first living waiter.
-- KEYS       the lock
-- arguments  token
-- answers    RELEASED, NOT_HELD

local function release(token)
  if not owns(token) then
    -- An acquire that was sent again before this release may have found the lock gone, and queued:
    -- nothing of the token is left behind (G6).
    local old = ticket(token)
    if old and old.session == session then
      drop({ token })
      wait_ends(old)
    end
    return answer(14 --[[NOT_HELD]], absence())
  end
  free()
  answer(15 --[[RELEASED]])
end
