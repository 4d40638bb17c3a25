-- Leave the queue; if the lock was granted meanwhile, give it back (R30).
-- KEYS       the lock
-- arguments  token; proof
-- answers    CANCELLED

local function cancel(token, proof)
  local it = record()
  -- By session and proof as well: in the drop-ins the same value may be another's by now.
  local granted = it and it.token == token and it.session == session and it.proof == proof
  local old = ticket(token)
  if old and old.session == session and old.proof == proof then
    drop({ token })
    wait_ends(old)
  end
  if granted then
    free()
  end
  answer(16 --[[CANCELLED]], granted and 1 or 0)
end
