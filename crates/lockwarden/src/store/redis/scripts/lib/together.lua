-- Those who hold a lock together: readers, or whoever has some of its permits. The key says so by a value that is nobody's
-- token. Beside it stand a sorted set of tokens by the ends of the leases (us), and a hash of records by token; both end
-- with the key, when the last of the leases does.
--
-- share    packed: as a record; then the mode, if that did not come before: how many permits, of how many (-1: shared)
--
-- A mode is two numbers everywhere: count and of. Of 0: exclusive; -1: shared.

local function share_of(token)
  local text = call('HGET', companion('shares'), token)
  return text and record_of(text) or nil
end

-- How many permits they have together stands in the hash, too, under no token.
local function used()
  return tonumber(call('HGET', companion('shares'), '') or 0)
end

local function use_permits(more)
  if more ~= 0 then
    call('HSET', companion('shares'), '', used() + more)
  end
end

-- In how many ms the last of the leases ends, 1 at least; or nil: there is none.
local function last_left()
  local last_one = call('ZRANGE', companion('holders'), -1, -1, 'WITHSCORES')
  if not last_one[1] then
    return nil
  end
  local left = ceil((last_one[2] - now) / 1000)
  return left < 1 and 1 or left
end

-- The key and what stands beside it end with the last of the leases.
local function settle()
  local left = last_left()
  if not left then
    call('DEL', key, companion('holders'), companion('shares'))
    values[key], records[key], certain[key] = false, false, true
    return
  end
  call('PEXPIRE', key, left)
  call('PEXPIRE', companion('holders'), left)
  call('PEXPIRE', companion('shares'), left)
end

local function put_share(it, ends)
  call('HSET', companion('shares'), it.token, text_of_record(it))
  call('ZADD', companion('holders'), ends, it.token)
end

local function remove_share(token)
  local it = share_of(token)
  call('ZREM', companion('holders'), token)
  call('HDEL', companion('shares'), token)
  if it and it.of > 0 then
    use_permits(-it.count)
  end
end

-- Forgets those whose leases are over, many at a time: those of a process that has died end together. Nobody may be left.
forget_over = function()
  local is_changed = false
  -- Nearly always nobody's is over.
  local upto = 0
  while true do
    local first = call('ZRANGE', companion('holders'), 0, upto, 'WITHSCORES')
    local over = {}
    for n = 1, #first, 2 do
      if tonumber(first[n + 1]) <= now then
        over[#over + 1] = first[n]
      end
    end
    is_changed = is_changed or not first[1] or #over > 0
    if #over == 0 then
      break
    end
    local freed = 0
    for _, text in ipairs(call('HMGET', companion('shares'), unpack(over))) do
      local it = text and record_of(text)
      freed = freed + (it and it.of > 0 and it.count or 0)
    end
    call('ZREM', companion('holders'), unpack(over))
    call('HDEL', companion('shares'), unpack(over))
    use_permits(-freed)
    upto = 999
  end
  if is_changed then
    settle()
  end
end

-- The holders, whose lease ends first comes first: at most so many. `ends`: when its lease does (us), of those who hold
-- it together.
local function holders(most)
  if not is_together() then
    local it = record()
    return it and { it } or {}
  end
  local found = call('ZRANGE', companion('holders'), 0, most - 1, 'WITHSCORES')
  local list, tokens = {}, {}
  for n = 1, #found, 2 do
    tokens[#tokens + 1] = found[n]
  end
  -- One command for all of them: there may be many, and every refused acquire looks at them.
  -- (Lua gives a call some thousands of arguments at most.)
  for from = 1, #tokens, 1000 do
    local upto = from + 999 < #tokens and from + 999 or #tokens
    local texts = call('HMGET', companion('shares'), unpack(tokens, from, upto))
    for n = from, upto do
      local text = texts[n - from + 1]
      local it = text and record_of(text)
      if it then
        it.ends = tonumber(found[2 * n])
        list[#list + 1] = it
      end
    end
  end
  return list
end

-- The record of the holder with this token, if it counts; else nil.
local function held_by(token)
  if is_together() then
    return share_of(token)
  end
  local it = record()
  return it and it.token == token and it or nil
end

-- When the lease of the holder with this token ends (us), of those who hold it together.
local function holders_end(token)
  local rank = call('ZRANK', companion('holders'), token)
  return tonumber(call('ZRANGE', companion('holders'), rank, rank, 'WITHSCORES')[2])
end

-- Does somebody hold it by this token? A foreign client does by its value.
local function holds(token)
  return held_by(token) ~= nil or (not is_together() and not record() and value() == token)
end

-- The mode that it is held in by holders of ours: count and of; or nil.
local function mode_in_use()
  if is_together() then
    local it = holders(1)[1]
    return it and it.count, it and it.of
  end
  if record() then
    return 0, 0
  end
  return nil
end

-- May it be granted to anybody: is it free, or held together?
local function may_grant()
  return not value() or is_together()
end

-- Is there room for one more in this mode?
local function has_room(count, of)
  if not value() then
    return true
  end
  if of == 0 or not is_together() then
    return false
  end
  local _, in_use = mode_in_use()
  if of == -1 or in_use == -1 then
    return of == in_use
  end
  return of == in_use and used() + count <= of
end

-- Permits stand beside permits of the same number only.
local function may_stand_beside(of, in_use)
  return of == in_use or (of < 1 and in_use < 1)
end

local function mode_text(count, of)
  if of == 0 then
    return ''
  end
  return of == -1 and 's' or 'p' .. format('%.0f/%.0f', count, of)
end

local function mode_of(text)
  local count, of = match(text, '^p(%d+)/(%d+)$')
  return tonumber(count or 0), tonumber(of or (text == 's' and -1 or 0))
end

-- Is this floor absurd (R34)? Where the clock was set back, the fences that were given are the measure.
local function is_ahead(its_floor)
  local measure = now > fence and now or fence
  return its_floor > measure + 86400000000 --[[MAX_FLOOR_AHEAD_US]]
end

-- The fence of a new grant. It counts once that is written: without memory it is not (R12).
local function next_fence(its_floor)
  local new_fence = fence + 1
  if now > new_fence then
    new_fence = now
  end
  if its_floor >= new_fence then
    new_fence = its_floor + 1
  end
  return new_fence
end

-- Writes a grant to a ticket; the fence grows with every one of them, per name and in all (R34). Locks that are granted
-- together have one fence. `modes`: those of the keys; and `least`: the end of a minimum that began before (us). `whole`:
-- nobody has to renew it first (R27).
local function grant(it, keys, modes, whole)
  local new_fence = next_fence(it.floor)
  it.fence, it.state, it.run, it.since = new_fence, 0 --[[IS_HELD]], short_run, now
  it.least = it.at_least > 0 and now + it.at_least * 1000 or 0
  local here = key
  local granted = it
  for n = 1, #keys do
    key = keys[n]
    if #keys > 1 then
      -- Each lock has a record of its own.
      it = {}
      for name, text in pairs(granted) do
        it[name] = text
      end
    end
    it.count, it.of = modes[n].count, modes[n].of
    if modes[n].least and modes[n].least > it.least then
      it.least = modes[n].least
    end
    local ends = end_of(it, it.lease)
    -- Handed on, it has an end until the first renewal (R27).
    it.endless = granted.endless and it.of == 0
    if it.of == 0 then
      write(it, not (it.endless and whole) and left_until(ends) or nil)
    else
      if not is_together() then
        -- First, for without memory it is refused (R12).
        call('SET', key, together_value, 'PX', it.lease)
        call('DEL', companion('holders'), companion('shares'))
        values[key], records[key], certain[key] = together_value, false, true
      end
      put_share(it, ends)
      if it.of > 0 then
        use_permits(it.count)
      end
      settle()
    end
  end
  key = here
  -- Not before it is written: without memory it is not (R12).
  fence, fence_grew = new_fence, true
  return new_fence
end

-- Takes the holder of this token away; `free` also hands on.
local function delete(token)
  if is_together() then
    remove_share(token)
    return settle()
  end
  call('DEL', key, companion('record'))
  values[key], records[key], certain[key] = false, false, true
end

-- Sets the whole lease of the holder of a token, and writes what it results in (R15). `it`: its record, if one counts.
local function extend(lease, it)
  -- First what needs no memory: what follows a write is not refused for the lack of it.
  if it and it.of ~= 0 then
    settle()
    it.lease, it.run = lease, short_run
    put_share(it, end_of(it, lease))
    return settle()
  end
  local left = it and left_until(end_of(it, lease)) or lease
  local is_endless = it and it.endless
  -- Endless from now on, if it had an end because it was handed on, or its holder had to show itself (R14, R15, R27).
  local has_end = is_endless and (call('PTTL', key) >= 0 or call('PTTL', companion('record')) >= 0)
  if not is_endless or has_end then
    expire_in(left, it)
  end
  if it and (has_end or it.lease ~= lease or it.run ~= short_run) then
    it.lease, it.run = lease, short_run
    write(it, not is_endless and left or nil)
  end
end

-- When a hold ends (us), not later than its lease says (R15).
local function end_of_hold(it)
  if it.of ~= 0 then
    return holders_end(it.token)
  end
  local latest, left = end_of(it, it.lease), call('PTTL', key)
  return left >= 0 and now + left * 1000 < latest and now + left * 1000 or latest
end

-- Puts a hold in the place of the one of this token. First what needs no memory: what follows a write is not refused
-- for the lack of it.
local function replace(token, it, ends)
  if it.of == 0 then
    expire_in(left_until(ends), it)
    return write(it, left_until(ends))
  end
  remove_share(token)
  put_share(it, ends)
  if it.of > 0 then
    use_permits(it.count)
  end
  settle()
end

-- The token of a hold that cools: whoever knows that of the hold cannot touch it any more (R33).
local function cooling_token(token)
  return 'lockwarden:cooling:' .. token
end

-- Lets a hold cool until then (us): by its token nobody can touch it any more (R33).
local function cool(token, ends)
  local it = held_by(token)
  it.token, it.state, it.least, it.delay, it.endless = cooling_token(token), 2 --[[IS_COOLING]], 0, 0, false
  -- So that a repair of the lease is none (R15).
  it.lease = left_until(ends)
  replace(token, it, ends)
end

local function absence()
  if value() then
    return 1 --[[TAKEN]]
  end
  -- The key of an endless lock may have been deleted by hand. No expiry takes its record away (G9).
  call('DEL', companion('record'))
  return 0 --[[FREE]]
end

-- May the caller renew or release by this token? Not if the record says that another session holds it
-- (R25). A key without a counting record is anyone's who knows its value.
local function owns(token)
  if not holds(token) then
    return false
  end
  local it = held_by(token)
  return not it or it.session == session, it
end
