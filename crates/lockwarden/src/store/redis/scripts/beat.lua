-- The heartbeat of a session (R19).
-- arguments  mark: empty where the answer itself is the beat; else it goes with the message that is
-- answers    BEAT, PUBLISHED

local function beat(_, mark)
  -- A write that changes nothing: a server that refuses writes must not be believed.
  call('HDEL', KEYS[1], '-')
  -- Asked on every link: the beat is what shows that messages would be heard (R21).
  local count = call('PUBSUB', 'NUMSUB', 'lockwarden:session:' .. session)[2]
  if mark == '' then
    return answer(18 --[[BEAT]], meta_run, count)
  end
  tell(session, 'B', field(mark) .. field(epoch) .. field(meta_run) .. number(now) .. number(count))
  answer(19 --[[PUBLISHED]])
end

-- A message to oneself, which must arrive (R10).
-- arguments  mark
-- answers    PUBLISHED, or the server's error
local function echo(_, mark)
  call('PUBLISH', 'lockwarden:session:' .. session, 1 --[[SCHEMA]] .. 'T' .. field(mark))
  answer(19 --[[PUBLISHED]])
end
