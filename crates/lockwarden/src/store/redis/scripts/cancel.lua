-- Leave the queue; if the lock was granted meanwhile, give it back (R30). Or the queues, and the locks.
-- KEYS       the lock, or the locks
-- arguments  token; proof
-- answers    CANCELLED

local function cancel(keys, token, proof)
  look_at(keys)
  local granted = {}
  for n = 1, #keys do
    key = keys[n]
    local it = held_by(token)
    -- By session and proof as well: in the drop-ins the same value may be another's by now.
    -- What waits to be adopted was not granted to whoever gives up adopting it.
    if it and it.session == session and it.proof == proof and it.state ~= 3 --[[IS_HANDED_OVER]] then
      granted[#granted + 1] = key
    end
  end
  stand_down(keys, token, function(old)
    return old.session == session and old.proof == proof
  end)
  if #granted > 0 then
    free(granted, token)
  end
  answer(16 --[[CANCELLED]], #granted > 0 and 1 or 0)
end
