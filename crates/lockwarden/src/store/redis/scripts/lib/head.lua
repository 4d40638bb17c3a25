-- One call: a batch of commands of one session, carried out in order, each with its own answer.
--
-- This is the head of the script that `script.rs` joins from the files in this folder. What it must
-- mirror, step by step, is `lockwarden-core/src/table.rs`; the names here are the names there. Numbers
-- in brackets are rules (R12) and guarantees (G9). Redis 4.0 is enough for all of it.
--
-- KEYS[1]    the hash `meta`: epoch, run, guard (us), fence (R2)
-- KEYS[2..]  the lock's key of each command that names a lock, in their order
-- ARGV[1]    the caller's session
-- ARGV[2]    the run that the caller read when it connected (R4); BLIND: it could not (R5);
--            empty: a self-test, which leaves meta alone (R10)
-- ARGV[3]    how long nothing may be granted, whatever meta says, in ms (R5, callers that are blind)
-- ARGV[4]    the common channel
-- ARGV[5]    how many terms follow, each six arguments: proof, wait (ms; NO_WAIT, FOR_EVER),
--            lease (ms), grace (ms), floor (a fence), party
-- ARGV[..]   the commands: a word with the form of the companions' names behind it (see `companion`),
--            then the arguments that stand at the head of the command's own file
--
-- reply      one flat array: STALE alone, or CARRIED_OUT, epoch, now (us), then for each command a code
--            and as many values as its code has
if redis.replicate_commands then
  redis.replicate_commands()
end

local call, try = redis.call, redis.pcall
local pack, unpack_packed = cmsgpack.pack, cmsgpack.unpack
local format, sub, match, ceil, floor = string.format, string.sub, string.match, math.ceil, math.floor

-- The protocol's constants (checked against `lockwarden-core` by a test).
local W_MS = 3000
local QUEUE_TTL_MS = 60000
local ASK_EVERY_MS = 1000
local DROPS_PER_COMMAND = 64
local MAX_FLOOR_AHEAD_US = 86400000000
-- The form of records and tickets. Another number: a newer Lockwarden wrote it, and we change nothing.
local SCHEMA = 1
local BLIND = '?'
local NO_WAIT, FOR_EVER = -2, -1

-- Codes of a call and of its answers (checked against `answer.rs` by a test).
local CARRIED_OUT, STALE = 0, 1
local GRANTED, REFUSED, RENEWED, GUARDED, NOT_HELD, RELEASED = 10, 11, 12, 13, 14, 15
local CANCELLED, REVOKED, BEAT, PUBLISHED, SHOWN = 16, 17, 18, 19, 20
local UNSUBSCRIBED, MORE, FLOOR_AHEAD, FAILED = 21, 22, 23, 24
-- What stands about a holder: nobody, a foreign client, one of ours.
local NOBODY, FOREIGN, OURS = 0, 1, 2
-- Why there is nothing of that token.
local FREE, TAKEN, WAS_REVOKED = 0, 1, 2

local session, run = ARGV[1], ARGV[2]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Set by `enter`.
local epoch, meta_run, fence, guard_ms
local fence_grew = false

-- The lock of the command whose turn it is, and the form of its companions' names.
local key, form
-- What is known of the locks of this call, by key. Nothing but this call's own commands can change it
-- meanwhile: a script is alone on the server, and its clock stands still.
-- values: the key's value, or false: none. Absent: not read yet.
-- records: the packed record, or false.
-- certain: the absence of the value was read by GET, which tells a free key from one of another type
-- (MGET does not).
local values, records, certain = {}, {}, {}
-- No queue stands at any lock of this call.
local nobody_waits = false

-- The terms of the call's acquires, by their numbers.
local terms = {}

-- The answers, flat.
local reply, last = {}, 0
