-- Give the lock back and hand it to the first living waiter; or several together.
-- KEYS       the lock, or the locks
-- arguments  token; and in the place of a term's number 1: it was lost before, and is given up too late (R43)
-- answers    RELEASED, NOT_HELD

local function release(keys, token, lost)
  look_at(keys)
  local owned, others = {}, {}
  local gone
  for n = 1, #keys do
    key = keys[n]
    if owns(token) then
      owned[#owned + 1] = key
    elseif not owns(cooling_token(token)) then
      -- What a release before this one left to cool is released (G6).
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
  -- Whose minimum is not over is not free (R33), nor what was lost before for its delay (R43).
  local done = {}
  for n = 1, #owned do
    key = owned[n]
    local it = held_by(token)
    local ends = it and it.state == 0 --[[IS_HELD]] and (lost == 1 and end_of(it, 0) or it.least) or 0
    if ends > now then
      cool(token, ends)
    else
      done[#done + 1] = key
    end
  end
  key = keys[1]
  if #done > 0 then
    free(done, token)
  end
  if gone then
    return answer(14 --[[NOT_HELD]], gone)
  end
  answer(15 --[[RELEASED]])
end
