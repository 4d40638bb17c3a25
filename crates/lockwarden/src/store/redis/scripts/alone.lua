-- One acquire or release in a call of its own, outside a guard: what a program does that uses one lock at
-- a time. An acquire of a lock that is free and has no queue, a release without a queue, and the hand-off
-- to a first waiter who is alive. It is done before anything is made that only other calls need, which
-- costs more than the commands themselves. The same as in the commands' own files; whatever is not as
-- expected here is left to them, and nothing was changed by then.

local meta = call('HMGET', KEYS[1], 'epoch', 'run', 'guard', 'fence', 'queues')
-- No queue at all is left when this is over. Names of other prefixes may have the same keys.
local queues = meta[5]
if KEYS[1] ~= 'lockwarden:meta' then
  queues = call('HGET', 'lockwarden:meta', 'queues')
end
local queues_until = tonumber(queues or 0)
-- The caller speaks of the present run, and no guard runs.
local is_settled = meta[1] and meta[2] == run and ARGV[3] == '0' and tonumber(meta[3] or 0) <= now
if is_settled and KEYS[2] and not KEYS[3] then
  local its_key = KEYS[2]
  local new_fence = tonumber(meta[4] or 0) + 1
  if now > new_fence then
    new_fence = now
  end
  local tail = queues_until > now and ':{' .. its_key .. '}'
  local queue_name = tail and 'lockwarden:queue' .. tail
  if ARGV[7] == 'r\0' and ARGV[6] == '\0\0\0\0' then
    local held = try('GET', its_key)
    local own_head = 'lockwarden:' .. pack(1 --[[SCHEMA]], session, ARGV[8])
    local waiting = held and not held.err and find(held, own_head, 1, true) == 1
      and (queue_name and try('ZRANGE', queue_name, 0, 1) or {})
    if waiting and not waiting.err then
      local next_token = waiting[1]
      if not next_token then
        call('DEL', its_key)
        return { 0 --[[CARRIED_OUT]], meta[1], now, 15 --[[RELEASED]] }
      end
      local tickets_name = 'lockwarden:tickets' .. tail
      local texts = try('HMGET', tickets_name, unpack(waiting))
      local schema, proof, to, lease, grace, floor, deadline, since, party
      local behind_schema, behind_proof, behind
      if texts[1] then
        schema, proof, to, lease, grace, floor, deadline, since, party = cmsgpack.unpack(texts[1])
        if texts[2] then
          behind_schema, behind_proof, behind = cmsgpack.unpack(texts[2])
        end
      end
      -- An owner's places (R37): those of one that is a part of another stand in several.
      local owner = schema == 1 --[[SCHEMA]] and string.match(party, '^%["([%w%._:@/%+=%-]*)"')
      local is_plain = owner and proof == '' and not find(owner, '/', 1, true)
      if is_plain and (behind_schema or 1) == 1 --[[SCHEMA]]
        and (deadline < 0 or deadline > now)
        and call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. to)[2] > 0 then
        if lease > 3000 --[[W_MS]] then
          lease = 3000 --[[W_MS]]
        end
        if floor >= new_fence then
          new_fence = floor + 1
        end
        local fence_text = string.format('%.0f', new_fence)
        local set = try('SET', its_key, 'lockwarden:' .. pack(1 --[[SCHEMA]], to, next_token, new_fence, 0, lease,
          sub(run, 1, 16), proof, now, grace, party), 'PX', lease)
        -- Without memory it is refused, and the release must delete first (R12).
        if set.ok then
          call('ZREM', queue_name, next_token)
          call('HDEL', tickets_name, next_token)
          if owner ~= '' then
            try('HDEL', 'lockwarden:wait' .. sub(KEYS[1], 16) .. '#' .. owner,
              pack(1 --[[SCHEMA]], its_key, '', next_token))
          end
          call('HSET', KEYS[1], 'fence', fence_text)
          local head = #its_key .. ':' .. its_key
          local granted = #next_token .. ':' .. next_token
          local fence_field = #fence_text .. ':' .. fence_text
          local lease_field = #tostring(lease) .. ':' .. lease
          local first = behind == to and waiting[2] or ''
          if behind and behind ~= to then
            local grace_text = string.format('%.0f', grace)
            try('PUBLISH', 'lockwarden:session:' .. behind, 1 --[[SCHEMA]] .. 'F' .. head .. #waiting[2] .. ':'
              .. waiting[2] .. granted .. lease_field .. #to .. ':' .. to .. fence_field .. lease_field
              .. #grace_text .. ':' .. grace_text .. '1:01:0' .. #party .. ':' .. party .. '0:1:01:01:0')
          end
          try('PUBLISH', 'lockwarden:session:' .. to, 1 --[[SCHEMA]] .. 'G' .. head .. granted .. fence_field
            .. lease_field .. #meta[1] .. ':' .. meta[1] .. #first .. ':' .. first)
          return { 0 --[[CARRIED_OUT]], meta[1], now, 15 --[[RELEASED]] }
        end
      end
    end
  elseif ARGV[7] == 'a\1' and ARGV[6] == '\0\1\0\0' and ARGV[8] == '' and tonumber(ARGV[9]) ~= -3 --[[ADOPT]] and ARGV[14] == '' and tonumber(ARGV[12]) < now
    and (not queue_name or call('EXISTS', queue_name) == 0)
    and (ARGV[5] == '1' or call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2] > 0) then
    local lease = ARGV[10]
    -- NX tells a free key from one that is taken or of another type.
    local set = try('SET', its_key, 'lockwarden:' .. pack(1 --[[SCHEMA]], session, ARGV[15], new_fence, 0,
      tonumber(lease), sub(run, 1, 16), '', now, tonumber(ARGV[11]), ARGV[13]), 'PX', lease, 'NX')
    if set and set.ok then
      call('HSET', KEYS[1], 'fence', string.format('%.0f', new_fence))
      return { 0 --[[CARRIED_OUT]], meta[1], now, 25 --[[GRANTED_AS_ASKED]], new_fence }
    end
  end
end
