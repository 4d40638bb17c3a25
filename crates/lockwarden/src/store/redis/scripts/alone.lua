-- One acquire or release in a call of its own, of a lock for which nobody queues, outside a guard: what a
-- program does that uses one lock at a time. It is done before anything is made that only other calls
-- need, which costs more than the command itself. The same as in the commands' own files; whatever is not
-- as expected here is left to them, and nothing was changed.

local meta = call('HMGET', KEYS[1], 'epoch', 'run', 'guard', 'fence')
-- The caller speaks of the present run, and no guard runs.
local is_settled = meta[1] and meta[2] == run and ARGV[3] == '0' and tonumber(meta[3] or 0) <= now
if is_settled and KEYS[2] and not KEYS[3] and ARGV[5] == '0' then
  local its_key, word = KEYS[2], ARGV[7]
  -- A beat may be in the call, too.
  local is_last = ARGV[9] == nil
  if ARGV[6] == '1' then
    word, is_last = ARGV[13], ARGV[16] == nil
  end
  local record_name = 'lockwarden:record:{' .. its_key .. '}'
  if not is_last or (word ~= 'acquire' and word ~= 'release')
    or call('EXISTS', 'lockwarden:queue:{' .. its_key .. '}') == 1 then
    -- For the others to do.
  elseif word == 'release' then
    local token = ARGV[8]
    local found = call('MGET', its_key, record_name)
    local own_head = pack(1 --[[SCHEMA]], session)
    if found[1] == token and (not found[2] or sub(found[2], 1, #own_head) == own_head) then
      call('DEL', its_key, record_name)
      return { 0 --[[CARRIED_OUT]], meta[1], now, 15 --[[RELEASED]] }
    end
  elseif tonumber(ARGV[11]) <= now
    and call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2] > 0 then
    local proof, lease, grace, party, token = ARGV[7], ARGV[9], ARGV[10], ARGV[12], ARGV[14]
    -- NX tells a free key from one that is taken or of another type.
    local set = try('SET', its_key, token, 'PX', lease, 'NX')
    if set and set.ok then
      local new_fence = tonumber(meta[4] or 0) + 1
      if now > new_fence then
        new_fence = now
      end
      call('SET', record_name, pack(1 --[[SCHEMA]], session, token, new_fence, 0, tonumber(lease), run,
        proof, now, tonumber(grace), party), 'PX', lease)
      call('HSET', KEYS[1], 'fence', string.format('%.0f', new_fence))
      return { 0 --[[CARRIED_OUT]], meta[1], now, 25 --[[GRANTED_AS_ASKED]], new_fence }
    end
  end
end
