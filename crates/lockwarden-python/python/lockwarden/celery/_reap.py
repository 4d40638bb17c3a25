"""Locks of dead tasks that plain redis-py wrote, with the task's id as token and perhaps without an expiry.

Nothing renews such a lock and nothing watches its holder. All there is to ask is Celery; and Celery answers only for the
workers that answer. So what is not known counts as alive.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from .._errors import Invalid, LockLost, NotHeld
from .._lock import Seconds, seconds
from .._warden import Warden
from ._policy import Store, default_url, warden_of


@dataclass(frozen=True)
class Found:
    """One lock that :func:`reap` looked at."""

    name: str
    task_id: str
    #: ``"dead"``: it would be freed; ``"freed"``; ``"alive"``; ``"unknown"``; ``"changed"``: it has another holder, or
    #: none, by now.
    state: str
    why: str


def reap(
    app: Any,
    pattern: str,
    *,
    free: bool = False,
    workers: Iterable[str] = (),
    gone: Iterable[str] = (),
    timeout: Seconds = 2,
    between: Seconds = 1,
    is_task_id: Optional[Callable[[str], bool]] = None,
    warden: Store = None,
    client: Any = None,
) -> List[Found]:
    """Frees the locks of dead tasks, among the keys that match ``pattern``: Redis' own, as in ``"lock:invoice:*"``.

    Without ``free=True`` it changes nothing and tells what it would do: look at that first.

    A lock is freed if its value is the id of a task, and no worker has this task active, reserved or scheduled: every
    worker that is known has answered so, twice, ``between`` s apart. It is freed only while it has this very value.
    Lockwarden's own locks are never touched: they end by themselves.

    Known are the workers whose mailboxes the broker lists (Redis does), and ``workers``: say there which must answer. A
    worker that is known and is silent for ``timeout`` s may run anything, so nothing is freed. One that will never come
    back, but is still listed, is named in ``gone``: that is your word for its having ended.

    ``is_task_id``: which values are ids of tasks; Celery's own form is a UUID with hyphens. ``warden``: as for
    :func:`exclusive`; ``client``: a client of redis-py for the same database, if not by the same URL.
    """
    if not isinstance(pattern, str) or not pattern:
        raise Invalid(f"a pattern is a text, as Redis' KEYS has it, not {pattern!r}")
    if isinstance(workers, str) or isinstance(gone, str):
        raise Invalid("workers and gone are several names, not one text")
    limit, pause = seconds("a timeout", timeout), seconds("between", between)
    is_id = is_task_id or _is_uuid
    store = warden_of(app, warden)
    redis = client if client is not None else _client(app, warden)
    listed = _locks(store, redis, pattern, is_id)
    if not listed:
        return []
    said, left_out = frozenset(workers), frozenset(gone)
    first = _ask(app, said, left_out, limit)
    doubtful = {name: first.verdict(task_id) for name, task_id in listed.items()}
    again: Optional[_Answer] = None
    if any(state == "dead" for state, _ in doubtful.values()):
        time.sleep(pause)
        # Whatever came meanwhile was seen by nobody before: it is no candidate.
        still = _locks(store, redis, pattern, is_id)
        again = _ask(app, said, left_out, limit)
    found = []
    for name, task_id in sorted(listed.items()):
        state, why = doubtful[name]
        if state == "dead" and again is not None:
            if still.get(name) != task_id:
                state, why = "changed", "it has another holder by now, or none"
            else:
                state, why = again.verdict(task_id)
        if state == "dead" and free:
            state, why = _free(store, name, task_id, why)
        found.append(Found(name, task_id, state, why))
    return found


def _free(store: Warden, name: str, task_id: str, why: str) -> Tuple[str, str]:
    try:
        # One script: it compares the value, deletes the key, and hands the lock to whoever waits for it (A2).
        store.revoke(name, task_id.encode())
    except (NotHeld, LockLost):
        return "changed", "it has another holder by now, or none"
    return "freed", why


class _Answer:
    """What the workers said at one time."""

    def __init__(self, alive: Dict[str, str], silent: FrozenSet[str], nobody: str) -> None:
        self._alive = alive
        self._silent = silent
        self._nobody = nobody

    def verdict(self, task_id: str) -> Tuple[str, str]:
        if task_id in self._alive:
            return "alive", self._alive[task_id]
        if self._nobody:
            return "unknown", self._nobody
        if self._silent:
            return "unknown", "no answer from " + ", ".join(sorted(self._silent))
        return "dead", "no worker has the task active, reserved or scheduled"


def _ask(app: Any, said: FrozenSet[str], gone: FrozenSet[str], timeout: float) -> _Answer:
    listed = _listed(app)
    known = ((listed or frozenset()) | said) - gone
    alive: Dict[str, str] = {}
    answered: Optional[Set[str]] = None
    # In the order in which a task goes: so it cannot pass from one list to another unseen.
    for kind in ("scheduled", "reserved", "active"):
        # Where the broker lists all, nobody else is waited for; who starts meanwhile is in the list below, and has not
        # answered.
        most = len(known) if listed else None
        replies = getattr(app.control.inspect(timeout=timeout, limit=most), kind)() or {}
        for worker, tasks in replies.items():
            for one in tasks or ():
                task_id = (one.get("request") or one).get("id")
                if task_id:
                    alive[str(task_id)] = f"{kind} at {worker}"
        well = {worker for worker, tasks in replies.items() if isinstance(tasks, list)}
        answered = well if answered is None else answered & well
        # Who came meanwhile must answer as all others; who left without a word is unknown.
        known |= frozenset(replies)
    known |= (_listed(app) or frozenset()) - gone
    nobody = ""
    if listed is None and not said:
        nobody = "the broker does not list its workers: name them in workers"
    elif not known:
        nobody = "no worker is known: name those that there are in workers"
    return _Answer(alive, known - frozenset(answered or ()), nobody)


def _listed(app: Any) -> Optional[FrozenSet[str]]:
    """The workers whose mailboxes are bound to the broker's exchange for them; None: the broker does not tell."""
    from kombu.exceptions import InconsistencyError

    mailbox = app.control.mailbox
    suffix = f".{mailbox.namespace}.pidbox"
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        table = getattr(channel, "get_table", None)
        # In memory a table is this process's own.
        if table is None or not hasattr(channel, "keyprefix_queue"):
            return None
        try:
            bindings = table(mailbox.exchange.name)
        except InconsistencyError:  # Old versions say so where there are none.
            return frozenset()
    queues = [binding[2] for binding in bindings if len(binding) > 2]
    return frozenset(queue[: -len(suffix)] for queue in queues if queue.endswith(suffix))


def _locks(store: Warden, redis: Any, pattern: str, is_id: Callable[[str], bool]) -> Dict[str, str]:
    """By name, whose task's locks there are that are not ours."""
    found: Dict[str, str] = {}
    for key in redis.scan_iter(match=pattern, count=500):
        raw = key if isinstance(key, bytes) else str(key).encode()
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            continue
        if name.startswith("lockwarden:") or redis.type(key) not in (b"string", "string"):
            continue
        holders = store.show(name)["holders"]
        if len(holders) != 1 or not holders[0]["foreign"]:
            continue
        token = holders[0]["token"].decode("utf-8", "replace")
        if is_id(token):
            found[name] = token
    return found


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _client(app: Any, warden: Store) -> Any:
    import redis

    if isinstance(warden, str):
        return redis.Redis.from_url(warden)
    if warden is not None:
        raise Invalid("reap with a warden needs a client of redis-py for the same database, too")
    return redis.Redis.from_url(default_url(app))
