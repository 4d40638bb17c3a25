-- Let a lock, or several, be adopted by whoever knows the new token (R32); `acquire.lua` adopts. Until then nobody holds
-- it, and nobody else gets it.
-- KEYS       the lock, or the locks
-- arguments  token; the new token; how long it waits to be adopted (ms)
-- answers    HANDED_OVER, NOT_HELD

local function hand_over(keys, token, to, lease)
  look_at(keys)
  local mine = {}
  for n = 1, #keys do
    key = keys[n]
    -- Otherwise it was carried out before this, or the lock was adopted since (G6).
    if not held_by(to) then
      local is_mine, it = owns(token)
      if not (is_mine and it) then
        return answer(14 --[[NOT_HELD]], absence())
      end
      if over(it) then
        return answer(14 --[[NOT_HELD]], over(it))
      end
      mine[#mine + 1] = key
    end
  end
  for n = 1, #mine do
    key = mine[n]
    local it = held_by(token)
    it.token, it.state, it.endless = to, 3 --[[IS_HANDED_OVER]], false
    -- Since when and for how long it may be adopted.
    it.since, it.lease = now, tonumber(lease)
    replace(token, it, end_of(it, it.lease))
  end
  answer(30 --[[HANDED_OVER]])
end
