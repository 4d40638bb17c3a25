-- Carries out the commands of the call.

local commands = {
  acquire = { acquire, 2 },
  renew = { renew, 2 },
  release = { release, 1 },
  cancel = { cancel, 2 },
  revoke = { revoke, 3 },
  show = { show, 0 },
  beat = { beat, 1, true },
  echo = { echo, 1, true },
}

-- Reads what the uncontended part of a call needs in two commands for all locks.
local function read_ahead(steps)
  if #KEYS < 3 then
    return
  end
  local companions, queues = {}, {}
  for i = 1, #steps do
    key, form = steps[i].key, steps[i].form
    if key then
      companions[#companions + 1] = companion('record')
      queues[#queues + 1] = companion('queue')
    end
  end
  local found = call('MGET', unpack(KEYS, 2))
  for i = 1, #found do
    values[KEYS[i + 1]] = found[i]
  end
  found = call('MGET', unpack(companions))
  for i = 1, #found do
    records[KEYS[i + 1]] = found[i]
  end
  nobody_waits = call('EXISTS', unpack(queues)) == 0
end

local function read_terms()
  local at = 6
  for number = 1, tonumber(ARGV[5]) do
    local lease = tonumber(ARGV[at + 2])
    terms[tostring(number)] = {
      session = session, head = own_head, proof = ARGV[at], wait = tonumber(ARGV[at + 1]),
      lease = lease, grace = tonumber(ARGV[at + 3]), floor = tonumber(ARGV[at + 4]),
      party = ARGV[at + 5],
    }
    at = at + 6
  end
  return at
end

local function read_steps(at)
  local steps, named = {}, 1
  while ARGV[at] do
    local word, its_form = ARGV[at], ''
    local command = commands[word]
    if not command then
      word, its_form = match(word, '^(%a+)(.*)$')
      command = commands[word]
    end
    local step = { run = command[1], at = at, form = its_form }
    if not command[3] then
      named = named + 1
      step.key = KEYS[named]
    end
    steps[#steps + 1] = step
    at = at + 1 + command[2]
  end
  return steps
end

if not enter() then
  return { STALE }
end
answer(CARRIED_OUT, epoch, now)
local steps = read_steps(read_terms())
read_ahead(steps)
for i = 1, #steps do
  local step = steps[i]
  local at, before = step.at, last
  key, form = step.key, step.form
  local done, problem = pcall(step.run, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  if not done then
    -- This command's answer; the next one runs all the same (R12).
    for n = last, before + 1, -1 do
      reply[n] = nil
    end
    last = before
    if type(problem) == 'table' then
      problem = problem.err
    end
    answer(FAILED, tostring(problem))
  end
end
if fence_grew and run ~= '' then
  call('HSET', KEYS[1], 'fence', format('%.0f', fence))
end
return reply
