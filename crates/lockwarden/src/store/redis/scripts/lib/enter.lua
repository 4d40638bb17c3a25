-- Is this still the epoch that the caller knows (R4, R5)? A new epoch begins here, with its guard.
-- False: the caller speaks of a run that is over. (Where the caller and meta agree and no guard runs,
-- `batch.lua` has seen to it.)

-- Is nobody there who might hold a lock that was flushed? A caller that may hold one itself says so. One
-- whose own subscription is gone is not among those counted: the one there is another.
local function is_alone()
  if ARGV[4] == '' then
    return false
  end
  local others = call('PUBSUB', 'NUMSUB', ARGV[4])[2]
  if subscribers(session) > 0 then
    others = others - 1
  end
  return others <= 0
end

-- How long the server has served its present data, in s. A promoted replica says 0, however long its
-- process has run: locks that it never heard of may have been granted a moment ago.
local function uptime_s(info)
  local offset = match(call('INFO', 'replication'), 'second_repl_offset:(%-?%d+)')
  if offset and offset ~= '-1' then
    return 0
  end
  return tonumber(match(info, 'uptime_in_seconds:(%-?%d+)')) or 0
end

-- From now on there may be queues for 60 s, and with room, so that not every ticket writes it.
local function queues_may_stay()
  if queues_until < now + 60000 --[[QUEUE_TTL_MS]] * 1000 + 5000000 then
    queues_until = now + 60000 --[[QUEUE_TTL_MS]] * 1000 + 10000000
    call('HSET', 'lockwarden:meta', 'queues', format('%.0f', queues_until))
  end
end

local function enter(meta)
  if run == '' then
    epoch, meta_run, fence, guard_ms = '', '', 0, 0
    return true
  end
  local guard
  epoch, meta_run, guard, fence = meta[1], meta[2], tonumber(meta[3] or 0), tonumber(meta[4] or 0)
  local missing = not (epoch or meta_run or meta[3] or meta[4])
  -- A run that the caller and meta agree on is the server's own: the caller read it from this very
  -- server. Only in doubt is the server asked itself.
  local blind = run == '?' --[[BLIND]]
  if not epoch or (meta_run ~= run and not blind) then
    local alone = false
    if not blind then
      local info = call('INFO', 'server')
      if match(info, 'run_id:(%w+)') ~= run then
        return false
      end
      alone = missing and uptime_s(info) > 3000 --[[W_MS]] / 1000 and is_alone()
    end
    guard = alone and 0 or now + 3000 --[[W_MS]] * 1000
    epoch, meta_run = format('%.0f.', now) .. session, run
    call('HMSET', KEYS[1], 'epoch', epoch, 'run', run, 'guard', format('%.0f', guard),
      'fence', format('%.0f', fence))
    if missing and not alone then
      -- Whoever removed meta may have left queues.
      queues_may_stay()
    end
  elseif guard > now + 3000 --[[W_MS]] * 1000 then
    -- No guard is longer than W: this one began before the clock was set back.
    guard = now + 3000 --[[W_MS]] * 1000
    call('HSET', KEYS[1], 'guard', format('%.0f', guard))
  end
  guard_ms = ceil((guard - now) / 1000)
  local least_ms = tonumber(ARGV[3])
  if least_ms > guard_ms then
    guard_ms = least_ms
  end
  if guard_ms < 0 then
    guard_ms = 0
  end
  return true
end
