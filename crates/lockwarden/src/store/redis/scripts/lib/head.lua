-- One call: a batch of commands of one session, carried out in order, each with its own answer.
--
-- This is the head of the script that `script.rs` joins from the files in this folder. What it must
-- mirror, step by step, is `lockwarden-core/src/table.rs`; the names here are the names there. Numbers
-- in brackets are rules (R12) and guarantees (G9). Redis 4.0 is enough for all of it.
--
-- KEYS[1]    the hash `meta`: epoch, run, guard (us), fence (R2)
-- KEYS[2..]  the lock's key of each command that names a lock, in their order
-- ARGV[1]    the caller's session
-- ARGV[2]    the run that the caller read when it connected (R4); `?`: it could not (R5); empty: a
--            self-test, which leaves meta alone (R10)
-- ARGV[3]    how long nothing may be granted, whatever meta says, in ms (R5, callers that are blind)
-- ARGV[4]    the common channel
-- ARGV[5]    how many forms follow: none, or one for each lock's key (see `companion`)
-- ARGV[..]   how many terms follow, each six arguments: proof, wait (ms; -2: none, -1: for ever),
--            lease (ms), grace (ms), floor (a fence), party
-- ARGV[..]   the commands: a word, then the arguments that stand at the head of the command's own file
--
-- reply      one flat array: STALE alone, or CARRIED_OUT, epoch, now (us), then for each command a code
--            and as many values as its code has
--
-- Codes and constants stand as numbers with their names beside them, so that they cost nothing; a test
-- holds them equal to those in Rust. Each call runs the whole script anew, and making its functions
-- would cost more than a command does. So they are made in `machine`, when the first command comes
-- that needs them; the common cases of the common commands are in `batch.lua` itself.
if redis.replicate_commands then
  redis.replicate_commands()
end

local call, try = redis.call, redis.pcall
local pack, sub, char = cmsgpack.pack, string.sub, string.char

local session, run = ARGV[1], ARGV[2]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

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
