-- Set the lease of a held lock anew.
-- KEYS       the lock
-- arguments  token; lease (ms)
-- answers    RENEWED, GUARDED, NOT_HELD, UNSUBSCRIBED

local function renew(token, lease)
  if subscribers(session) == 0 then
    return answer(UNSUBSCRIBED)
  end
  if not owns(token) then
    return answer(NOT_HELD, absence())
  end
  local text = records[key]
  local beginning = own_head .. pack(token) .. extension(lease)
  if text and sub(text, 1, #beginning) == beginning then
    -- The record says already what this renewal results in.
    call('PEXPIRE', key, lease)
    call('PEXPIRE', companion('record'), lease)
  else
    local it = record()
    if it and it.revoked == 1 then
      return answer(NOT_HELD, WAS_REVOKED)
    end
    extend(lease, it)
  end
  if guard_ms > 0 then
    return answer(GUARDED, lease, guard_ms)
  end
  answer(RENEWED, lease)
end
