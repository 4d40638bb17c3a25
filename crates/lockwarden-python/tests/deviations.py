"""Where the drop-ins do not do what the libraries do that they stand in for: each with the fault that it mends.

The suites run the same lines against both. Where the result differs, the test says so through :func:`deviates`, with a name
of this list; anything else that differs is a failure. Case numbers (C04) are those of docs/CASES.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict


@dataclass(frozen=True)
class Deviation:
    theirs: str
    ours: str
    mends: str


REDIS_PY: Dict[str, Deviation] = {
    "token kept": Deviation(
        "a release that fails on the network has cleared the token before (sync; asyncio before 7): it cannot be tried again",
        "the token is kept until the store has answered",
        "C04",
    ),
    "body's error": Deviation(
        "an error of the release hides the one that the body raised",
        "the body's error is raised, the release's is logged",
        "C03",
    ),
    "another thread": Deviation(
        "in a thread other than the one that made the object: AttributeError, where its token is looked at",
        "LockError, or owned() is False: the thread has no token",
        "C07",
    ),
    "tasks apart": Deviation(
        "asyncio: all tasks of a thread share the token, so that a task whose lock has expired releases the next one's",
        "a task that acquired sees its own token; tasks that did not see the latest. thread_local=False: one token for all",
        "C06",
    ),
    "binary value": Deviation(
        "with decode_responses, owned() and locked() raise UnicodeDecodeError for a key whose value is no text",
        "owned() is False, locked() is True",
        "C05",
    ),
    "short limit": Deviation(
        "a blocking_timeout below sleep is one try, and any other is cut to whole sleeps",
        "it waits for as long as it says",
        "C24",
    ),
    "strange limit": Deviation(
        "blocking_timeout NaN waits for ever, True is 1 s",
        "refused: a DataError that is a ValueError",
        "C25",
    ),
    "strange timeout": Deviation(
        "timeouts below 1 ms, negative, infinite, NaN or text: what the server or int() says, after a round trip; True is 1 s",
        "refused before anything is sent: a DataError that is a ValueError",
        "C26",
    ),
    "long timeout": Deviation(
        "a timeout or an extension above thirty days is set",
        "refused as a mistyped unit: a DataError that is a ValueError",
        "C26",
    ),
    "shrinking extension": Deviation(
        "extend() takes a negative number, and deletes the key where nothing is left, with the answer True",
        "refused: an extension only adds, replace_ttl sets",
        "C22",
    ),
    "reacquire without timeout": Deviation(
        "reacquire() with timeout 0 deletes the key, and answers True",
        "LockError, as with timeout None",
        "C26",
    ),
    "others' belief": Deviation(
        "reacquire() or replace_ttl in another process may shorten what the holder still counts on",
        "the key keeps its longer TTL: what a living holder believes in never gets shorter (R18)",
        "C20",
    ),
    "strange name": Deviation(
        "an empty name, one that is not UTF-8, is over 4 KiB or begins with lockwarden: is a key as any other",
        "refused: a DataError that is a ValueError",
        "C27",
    ),
    "strange token": Deviation(
        "an empty token, one over 4 KiB or one that begins with lockwarden: is a value as any other",
        "refused: a DataError that is a ValueError",
        "C27",
    ),
    "wrong type": Deviation(
        "a key of another type (a hash, say) is as a lock that is held: acquire() is False, or waits for ever",
        "an error that names the key",
        "C28",
    ),
    "waits for itself": Deviation(
        "a second acquire() without timeout and limit, by the same object in the same thread or task, hangs for ever",
        "Deadlock, which is a LockError",
        "C57",
    ),
    "dead holder": Deviation(
        "without a timeout the key stays for ever when its process is killed, and with one until that is over",
        "it is free at once on the same machine, and after 3 s elsewhere",
        "C10, C11",
    ),
}

REDIS_LOCK: Dict[str, Deviation] = {
    "body's error": Deviation(
        "an error of the release hides the one that the body raised",
        "the body's error is raised, the release's is logged",
        "C03",
    ),
    "fraction of a second": Deviation(
        "a timeout below 1 s is no limit, an expire below 1 s is refused by the server at acquire()",
        "such a timeout is one, such an expire is refused by the constructor",
        "C25, C26",
    ),
    "binary value": Deviation(
        "with decode_responses, acquire(), get_owner_id() raise UnicodeDecodeError for a key whose value is no text",
        "somebody else holds it",
        "C05",
    ),
    "id that is no ASCII": Deviation(
        "without decode_responses such a lock does not know itself: acquire() waits for itself instead of AlreadyAcquired",
        "ids are compared as bytes",
        "C05",
    ),
    "limit above expire": Deviation(
        "a wait with a limit ends only at the end of its first BLPOP: a lock that expires meanwhile is not seen",
        "it is acquired when it expires",
        "C24",
    ),
    "dead holder": Deviation(
        "without expire the key stays for ever when its process is killed, and with it until that is over",
        "it is free at once on the same machine, and after 3 s elsewhere",
        "C10, C11",
    ),
}


def deviates(which: Dict[str, Deviation], name: str, *, ours: Any, theirs: Any, is_ours: bool) -> Any:
    """What is expected of the implementation at hand."""
    assert name in which, f"{name} is not in the list"
    return ours if is_ours else theirs
