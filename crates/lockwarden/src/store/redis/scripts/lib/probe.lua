-- What every refused acquire does for the lock (R14 to R16). `it`: the record, if one counts.

local function probe(it)
  if not it then
    return
  end
  -- A foreign client took the expiry away or made it longer: the lease is put back (R15).
  local ttl = call('PTTL', key)
  if ttl < 0 or ttl > it.lease then
    ttl = it.lease
    expire_in(ttl, it)
  end
  if subscribers(it.session) > 0 then
    -- It is connected; does it know of this token? It releases what it does not (R16).
    local asked = companion('asked')
    if call('GET', asked) ~= it.token then
      call('SET', asked, it.token, 'PX', 1000 --[[ASK_EVERY_MS]])
      tell(it.session, 'A', field(key) .. field(it.token))
    end
  elseif guard_ms == 0 and it.revoked == 0 and it.run == short_run and ttl > it.grace then
    -- Its link is closed: grace, then it is over (R14). A record of another run says nothing about a
    -- link to this one.
    expire_in(it.grace, it)
  end
end
