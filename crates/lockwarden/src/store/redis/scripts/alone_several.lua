-- The same of several names (R29): an acquire where all of them are free, and a release where the caller holds all of
-- them, without a queue at any; and a renewal, whoever waits. To make the functions of all commands costs more than dozens
-- of names do. Everything is read before the first write (R12); no name here has a form (see `companion`), so that its
-- queue's name is the plain one.

if is_settled and KEYS[3] then
  local is_acquire = ARGV[7] == 'a\1' and ARGV[6] == '\0\1\0\2' and ARGV[8] == '' and tonumber(ARGV[9]) ~= -3 --[[ADOPT]]
    and ARGV[14] == '' and tonumber(ARGV[12]) < now
  local is_release = ARGV[7] == 'r\0' and ARGV[6] == '\0\0\0\2'
  local is_renewal = ARGV[7] == 'n\1' and ARGV[6] == '\0\0\1\2'
  local hears = (is_acquire or is_renewal)
    and (ARGV[5] == '1' or call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2] > 0)
  -- What must not be there: nobody waits where no queue stands, and nothing is kept there for anybody.
  local absent = is_acquire and { unpack(KEYS, 2) } or {}
  local has_queues = queues_until > now
  if has_queues and (is_acquire or is_release) then
    for n = 2, #KEYS do
      absent[#absent + 1] = 'lockwarden:queue:{' .. KEYS[n] .. '}'
    end
  end
  local is_clear = #absent == 0 or try('EXISTS', unpack(absent)) == 0
  if is_acquire and is_clear and hears
    -- A request of its own whose tickets were dropped while it was cut off is to be forgotten.
    and (not has_queues or try('HGET', 'lockwarden:requested' .. sub(KEYS[1], 16), ARGV[15]) == false) then
    local new_fence = tonumber(meta[4] or 0) + 1
    if now > new_fence then
      new_fence = now
    end
    local lease = ARGV[10]
    -- Granted together they have one fence, and so one record.
    local text = 'lockwarden:' .. pack(1 --[[SCHEMA]], session, ARGV[15], new_fence, 0, tonumber(lease),
      sub(run, 1, 16), '', now, tonumber(ARGV[11]), ARGV[13])
    -- Without memory the first is refused, and none that follows a write.
    local set = try('SET', KEYS[2], text, 'PX', lease)
    if set.ok then
      for n = 3, #KEYS do
        call('SET', KEYS[n], text, 'PX', lease)
      end
      call('HSET', KEYS[1], 'fence', string.format('%.0f', new_fence))
      return { 0 --[[CARRIED_OUT]], meta[1], now, 25 --[[GRANTED_AS_ASKED]], new_fence }
    end
  elseif is_release and is_clear then
    local own_head = 'lockwarden:' .. pack(1 --[[SCHEMA]], session, ARGV[8])
    local found = try('MGET', unpack(KEYS, 2))
    local is_whole = not found.err
    for n = 1, #found do
      is_whole = is_whole and found[n] and find(found[n], own_head, 1, true) == 1
    end
    if is_whole then
      call('DEL', unpack(KEYS, 2))
      return { 0 --[[CARRIED_OUT]], meta[1], now, 15 --[[RELEASED]] }
    end
  elseif is_renewal and hears then
    local lease = ARGV[8]
    local found = try('MGET', unpack(KEYS, 2))
    -- Granted together they have one record.
    local text = found[1]
    local is_whole = text and find(text, 'lockwarden:' .. pack(1 --[[SCHEMA]], session, ARGV[9]), 1, true) == 1
    for n = 2, #found do
      is_whole = is_whole and found[n] == text
    end
    if is_whole then
      local ok, _, _, token, its_fence, state, its_lease, its_run, proof, since, grace, party =
        pcall(cmsgpack.unpack, sub(text, 12))
      -- First what needs no memory: what follows a write is not refused for the lack of it.
      if ok and state == 0 --[[IS_HELD]] and proof == '' and type(its_fence) == 'number' and type(since) == 'number'
        and type(grace) == 'number' and type(party) == 'string' and try('PEXPIRE', KEYS[2], lease) == 1 then
        local short = sub(run, 1, 16)
        if its_lease == tonumber(lease) and its_run == short then
          for n = 3, #KEYS do
            call('PEXPIRE', KEYS[n], lease)
          end
        else
          -- As where it was handed on by message, for W at most (R27).
          text = 'lockwarden:' .. pack(1 --[[SCHEMA]], session, token, its_fence, 0, tonumber(lease), short, '', since,
            grace, party)
          for n = 2, #KEYS do
            call('SET', KEYS[n], text, 'PX', lease)
          end
        end
        return { 0 --[[CARRIED_OUT]], meta[1], now, 12 --[[RENEWED]], lease }
      end
    end
  end
end
