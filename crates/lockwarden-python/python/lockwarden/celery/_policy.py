"""What a task's lock is to be: its options, its store, and what people are told of who holds it."""

from __future__ import annotations

import os
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union
from urllib.parse import urlsplit, urlunsplit

from .. import _native
from .._errors import Invalid
from .._lock import Lock, Seconds, optional_seconds, seconds
from .._warden import Warden, connect
from ._names import Namer, Template

Store = Union[None, str, Warden, Callable[[], Warden]]

CONFLICTS = ("skip", "retry", "wait", "join")
MOMENTS = ("run", "enqueue")

# Of a task: by these keys, in the tags of its lock.
TASK, NAME, WORKER, QUEUE = "task", "task_name", "worker", "queue"

_DEFAULT_LEASE = 30.0
_DEFAULT_GRACE = 3.0
_LONGEST = 30 * 24 * 3600.0
_wardens: Dict[str, Warden] = {}


class Policy:
    """The options of one ``@exclusive``."""

    def __init__(
        self,
        name: Template,
        function: Callable[..., Any],
        *,
        on_conflict: str,
        at: str,
        wait: Optional[Seconds],
        pledge: Seconds,
        backoff: Seconds,
        backoff_most: Seconds,
        max_conflicts: Optional[int],
        lease: Optional[Seconds],
        grace: Optional[Seconds],
        hold_at_most: Optional[Seconds],
        lock_delay: Optional[Seconds],
        tags: Optional[Mapping[str, str]],
        on_lost: Optional[Callable[[str], Any]],
        if_lost: str,
        warden: Store,
    ) -> None:
        if on_conflict not in CONFLICTS:
            raise Invalid(f"on_conflict is one of {', '.join(CONFLICTS)}, not {on_conflict!r}")
        if at not in MOMENTS:
            raise Invalid(f"at is one of {', '.join(MOMENTS)}, not {at!r}")
        if if_lost not in ("raise", "log", "ignore"):
            raise Invalid(f'if_lost is "raise", "log" or "ignore", not {if_lost!r}')
        if on_lost is not None and not callable(on_lost):
            raise Invalid(f"on_lost is called when the lock is lost, but {on_lost!r} cannot be")
        if max_conflicts is not None and (isinstance(max_conflicts, bool) or not isinstance(max_conflicts, int)):
            raise Invalid(f"max_conflicts is a number, or None, not {max_conflicts!r}")
        if wait is not None and on_conflict != "wait":
            raise Invalid(f'wait is for on_conflict="wait", not for {on_conflict!r}')
        self.namer = Namer(name, function)
        self.on_conflict = on_conflict
        self.at = at
        self.wait = optional_seconds("a wait", wait)
        self.pledge = seconds("a pledge", pledge)
        if not 0.1 <= self.pledge <= _LONGEST:
            raise Invalid(f"a pledge lasts 0.1 s to 30 days, not {self.pledge} s")
        self.backoff = seconds("a backoff", backoff)
        self.backoff_most = seconds("backoff_most", backoff_most)
        self.max_conflicts = max_conflicts
        self.lease = optional_seconds("a lease", lease)
        self.grace = optional_seconds("a grace", grace)
        self.hold_at_most = optional_seconds("hold_at_most", hold_at_most)
        self.lock_delay = optional_seconds("lock_delay", lock_delay)
        self.tags = dict(tags or {})
        self.on_lost = on_lost
        self.if_lost = if_lost
        self._store = warden
        code = getattr(function, "__code__", None)
        self.site = f"{code.co_filename}:{code.co_firstlineno}" if code else None

    @property
    def takeover(self) -> float:
        """By then a holder that is dead has been followed, wherever it was (G3)."""
        return (self.lease or _DEFAULT_LEASE) + (self.grace or _DEFAULT_GRACE) + (self.lock_delay or 0.0) + 1.5

    def warden(self, app: Any) -> Warden:
        return warden_of(app, self._store)

    def lock(
        self,
        warden: Warden,
        names: List[str],
        who: "Who",
        *,
        handed_over: Optional[str] = None,
        own_token: bool = True,
        owner: Optional[str] = None,
    ) -> Tuple[Lock, _native.Options]:
        """A lock of its own for one execution."""
        options = _native.Options(
            [(name, None) for name in names],
            handed_over=handed_over,
            lease=self.lease,
            grace=self.grace,
            label=who.label,
            tags=list({**self.tags, **who.tags}.items()),
            at_most=self.hold_at_most,
            delay=self.lock_delay,
            # What was handed over has a token already.
            value=who.token() if own_token and handed_over is None else None,
        )
        lock = Lock(
            warden,
            names,
            options,
            wait=None,
            owner=owner,
            on_lost=None,
            cancel_on_lost=False,
            if_lost=self.if_lost,
        )
        return lock, options


class Who:
    """The task that asks, as people see it."""

    def __init__(self, task_id: Optional[str], name: str, worker: Optional[str], queue: Optional[str]) -> None:
        self.task_id = task_id
        self.name = name
        self._worker = worker or "-"
        self._queue = queue or "-"

    @classmethod
    def runs(cls, task: Any, request: Any) -> "Who":
        """The task that this worker runs; or that a program calls as a function."""
        info = request.delivery_info or {}
        queue = info.get("routing_key") or info.get("exchange")
        task_id = None if request.called_directly else request.id
        return cls(task_id, task.name, request.hostname, None if request.is_eager else queue)

    @property
    def label(self) -> str:
        return _cut(f"{self.task_id or 'called directly'} {self._worker} {self._queue} {self.name}", 256)

    @property
    def tags(self) -> Dict[str, str]:
        tags = {NAME: self.name, WORKER: self._worker, QUEUE: self._queue}
        if self.task_id is not None:
            tags[TASK] = self.task_id
        # 1,024 bytes for all: some are left to the user.
        return {key: _cut(value, 160) for key, value in tags.items()}

    def token(self) -> bytes:
        """What other clients see as the key's value; never the same again, for the same task may come again."""
        nonce = uuid.uuid4().hex[:12]
        return f"{self.task_id or 'called-directly'} {self._worker} {self._queue} {nonce}".encode("utf-8", "replace")


def _cut(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def warden_of(app: Any, store: Store) -> Warden:
    if store is None:
        return default_warden(app)
    if isinstance(store, str):
        return connect(store)
    return store if isinstance(store, Warden) else store()


def default_warden(app: Any) -> Warden:
    """The store of an app: ``app.conf.lockwarden_url``, or ``LOCKWARDEN_URL``, or its broker, if that is Redis."""
    url = default_url(app)
    warden = _wardens.get(url)
    if warden is None or warden.closed:
        warden = _wardens[url] = connect(url)
    return warden


def default_url(app: Any) -> str:
    return str(app.conf.get("lockwarden_url") or os.environ.get("LOCKWARDEN_URL") or _of_broker(app))


def _of_broker(app: Any) -> str:
    url = app.conf.broker_write_url or app.conf.broker_url
    if isinstance(url, (list, tuple)):
        url = url[0] if len(url) == 1 else ""
    parts = urlsplit(str(url or ""))
    if parts.scheme not in ("redis", "rediss") or ";" in str(url):
        raise Invalid(
            "the app's broker is not one Redis server, so its locks need a store of their own: set "
            "app.conf.lockwarden_url or LOCKWARDEN_URL, or give @exclusive a warden"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
