-- Give the lock back and hand it to the first living waiter; or several together.
-- KEYS       the lock, or the locks
-- arguments  token
-- answers    RELEASED, NOT_HELD

local function release(keys, token)
  look_at(keys)
  local owned, others = {}, {}
  local gone
  for n = 1, #keys do
    key = keys[n]
    if owns(token) then
      owned[#owned + 1] = key
    else
      others[#others + 1] = key
      gone = gone or absence()
    end
  end
  -- An acquire that was sent again before this release may have found a lock gone, and queued:
  -- nothing of the token is left behind (G6).
  if #others > 0 then
    stand_down(others, token, function(old)
      return old.session == session
    end)
  end
  if #owned > 0 then
    free(owned, token)
  end
  if gone then
    return answer(14 --[[NOT_HELD]], gone)
  end
  answer(15 --[[RELEASED]])
end
