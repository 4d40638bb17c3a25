-- What this call knows: what meta says, its locks, its terms, and its answers so far.

-- What meta says; see `enter`.
local epoch, meta_run, fence, guard_ms
-- As much of its run as records carry: long values cost, and it need only differ from the run before.
local short_run
local fence_grew = false

-- The key of the lock of the command whose turn it is.
local key
-- Of each key whose companions' names have another form than the plain one: what stands behind their kind.
local tails = {}
-- What is known of the locks of this call, by their keys. Nothing but this call's own commands can change
-- it meanwhile: a script is alone on the server, and its clock stands still. Absent: not read.
-- values: the key's value, or false.
-- records: the record that counts, unpacked, or false.
-- waits: does a queue stand there?
-- certain: the absence of the value was read by GET, which tells a free key from one of another type
-- (MGET does not).
local values, records, waits, certain = {}, {}, {}, {}

-- How many listen on the channel of each session that this call asked about (R13).
local listeners = {}
if ARGV[5] == '1' then
  listeners[session] = 1
end
-- The terms of the call's acquires, by their numbers.
local terms = {}
-- How the value begins that says: held by the caller, under a token of ours.
local own_head = 'lockwarden:' .. pack(1 --[[SCHEMA]], session)

-- The answers, flat.
local reply, last = {}, 0
