-- What this call knows: what meta says, its locks, its terms, and its answers so far.

-- What meta says; see `enter`.
local epoch, meta_run, fence, guard_ms
local fence_grew = false

-- The lock of the command whose turn it is: its key, the form of its companions' names ('': plain), and
-- its number among the locks of this call.
local key, form, slot
-- What is known of the locks of this call, by their numbers. Nothing but this call's own commands can
-- change it meanwhile: a script is alone on the server, and its clock stands still. Absent: not read.
-- values: the key's value, or false.
-- records: the packed record, or false.
-- waits: does a queue stand there?
-- certain: the absence of the value was read by GET, which tells a free key from one of another type
-- (MGET does not).
local values, records, waits, certain = {}, {}, {}, {}

-- How many listen on the channel of each session that this call asked about (R13).
local listeners = {}
-- The terms of the call's acquires, by their numbers.
local terms = {}
-- How a record of the caller's own begins.
local own_head = pack(1 --[[SCHEMA]], session)

-- The answers, flat.
local reply, last = {}, 0
