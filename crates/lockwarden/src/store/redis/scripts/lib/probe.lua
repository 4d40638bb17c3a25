-- What every refused acquire does for the lock (R14 to R16): for each holder, of many for those whose leases end first.
-- (Who is dead renews no more, and is among them soon.)

local function probe()
  local list = holders(64 --[[DROPS_PER_COMMAND]])
  if #list == 0 then
    return
  end
  -- A foreign client took the expiry away or made it longer: the lease is put back (R15).
  local ttl = call('PTTL', key)
  if is_together() then
    -- Not without need: what follows a write is not refused for the lack of memory (R12).
    local left = last_left()
    if ttl < left - 2 or ttl > left + 2 then
      settle()
    end
  elseif list[1].endless then
    -- It alone may have no expiry: but not if its holder has not shown itself in this run.
    if ttl < 0 and guard_ms == 0 and list[1].run ~= short_run then
      ttl = left_until(end_of(list[1], 30000 --[[UNSEEN_ENDLESS_MS]]))
      expire_in(ttl, list[1])
    end
  else
    local most = left_until(end_of(list[1], list[1].lease))
    if ttl < 0 or ttl > most then
      ttl = most
      expire_in(ttl, list[1])
    end
  end
  local is_asked, is_shortened = false, false
  for n = 1, #list do
    local it = list[n]
    if is_nobodys(it) then
      -- What is nobody's has no link, and nobody to be asked (R32, R33).
    elseif subscribers(it.session) == 0 then
      local ends = end_of(it, it.grace)
      if guard_ms == 0 and it.state == 0 --[[IS_HELD]] and it.run == short_run then
        -- Its link is closed: grace, then it is over (R14). A record of another run says nothing about a
        -- link to this one.
        if not it.ends and (ttl < 0 or ttl > left_until(ends)) then
          expire_in(left_until(ends), it)
        elseif it.ends and it.ends > ends then
          put_share(it, ends)
          is_shortened = true
        end
      end
    elseif not is_asked then
      -- It is connected; does it know of this token? It releases what it does not (R16). Of many the first is asked.
      is_asked = true
      local asked = companion('asked')
      if call('GET', asked) ~= it.token then
        call('SET', asked, it.token, 'PX', 1000 --[[ASK_EVERY_MS]])
        tell(it.session, 'A', field(key) .. field(it.token))
      end
    end
  end
  if is_shortened then
    settle()
  end
end
