-- One call: a batch of commands of one session, carried out in order, each with its own answer.
--
-- This is the head of the script that `script.rs` joins from the files in this folder. What it must
-- mirror, step by step, is `lockwarden-core/src/table.rs`; the names here are the names there. Numbers
-- in brackets are rules (R12) and guarantees (G9). Redis 4.0 is enough for all of it.
--
-- KEYS[1]    the hash `meta`: epoch, run, guard (us), fence (R2). That of no prefix also says `queues` (us): later
--            than the end of any queue of the database, whatever the prefix of whoever waits
-- KEYS[2..]  the lock's key of each command that names a lock, in their order; or those of the one command that is
--            about several
-- ARGV[1]    the caller's session
-- ARGV[2]    the run that the caller read when it connected (R4); `?`: it could not (R5); empty: a
--            self-test, which leaves meta alone (R10)
-- ARGV[3]    how long nothing may be granted, whatever meta says, in ms (R5, callers that are blind)
-- ARGV[4]    the common channel; empty: whoever else is there, the caller itself may hold a lock (R5)
-- ARGV[5]    1: the caller's subscription stands on this very connection (RESP3), so that whoever calls is
--            subscribed (R11)
-- ARGV[6]    four bytes: 1: forms follow, one for each lock's key (see `companion`); how many terms, how many leases;
--            and 1: some key comes twice, 2: all keys are those of one command
-- ARGV[7]    the commands, two bytes each: a letter; and the number of its term (acquire) or lease (renew)
-- ARGV[..]   the forms
-- ARGV[..]   the terms, each seven arguments: proof, wait (ms; -2: none, -1: for ever), lease (ms), grace (ms),
--            floor (a fence), party, how (see `modes_of` and `keeping_of`; empty: exclusively, and nothing else)
-- ARGV[..]   the leases (ms)
-- ARGV[..]   what else the commands say, which stands at the head of the command's own file
--
-- reply      one flat array: STALE alone, or CARRIED_OUT, epoch, now (us), then for each command a code
--            and as many values as its code has
--
-- Codes and constants stand as numbers with their names beside them, so that they cost nothing; a test
-- holds them equal to those in Rust. Each call runs the whole script anew, and making its functions
-- would cost more than a command does. So they are made in `machine`, when the first command comes
-- that needs them; the common cases of the common commands are in `batch.lua` itself, and those of a call of
-- one command in `alone.lua` and `alone_several.lua`.
-- Redis 7 and later replicate effects anyway.
if not redis.REDIS_VERSION_NUM and redis.replicate_commands then
  redis.replicate_commands()
end

local call, try = redis.call, redis.pcall
local pack, sub, find, byte, char = cmsgpack.pack, string.sub, string.find, string.byte, string.char

local session, run = ARGV[1], ARGV[2]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
