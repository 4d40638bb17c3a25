"""In the place of ``redis_lock.Lock``."""

from __future__ import annotations

import base64
import logging
import os
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Type, TypeVar

from redis import Redis

from .. import _by_value, _clients, _kept
from .._errors import Busy, Endless, Error, Guarded, LockLost, Timeout
from .._redis_errors import Invalid, translated
from ._errors import (
    AlreadyAcquired,
    InvalidTimeout,
    NotAcquired,
    NotExpirable,
    TimeoutNotUsable,
    TimeoutTooLarge,
)

if TYPE_CHECKING:
    from .._native import Guard

Self = TypeVar("Self", bound="Lock")

log = logging.getLogger("lockwarden")

_LOCK = "lock:"
_SIGNAL = "lock-signal:"
# As python-redis-lock has it where it frees them all.
_RESET_ALL_SIGNAL_MS = 1000


class Lock:
    """A lock as ``redis_lock.Lock``: the key is ``lock:NAME``, its value the ``id``.

    It waits in a queue, first come, first served. Without ``expire`` the key has no TTL, and the lock is free all the same
    once its process has died. ``auto_renewal`` renews it on the warden's own thread, as often as it takes, as long as this
    object is there.
    """

    _lock_renewal_interval: Optional[float]

    def __init__(
        self,
        redis_client: Any,
        name: str,
        expire: Optional[float] = None,
        id: Any = None,
        auto_renewal: bool = False,
        strict: bool = True,
        signal_expire: int = 1000,
        blocking: bool = True,
    ) -> None:
        if strict and not isinstance(redis_client, Redis):
            raise ValueError(
                "redis_client must be an instance of redis.Redis; strict=False allows others"
            )
        if auto_renewal and expire is None:
            raise ValueError("Expire may not be None when auto_renewal is set")
        self._client = redis_client
        self._expire = _expire(expire)
        self._signal_expire = signal_expire
        self._id = _id(id)
        self._name = _LOCK + name
        self._signal = _SIGNAL + name
        # Users set it to renew at other times; here it says whether.
        self._lock_renewal_interval = (self._expire or 0) * 2 / 3 if auto_renewal else None
        self.blocking = blocking
        self._stop_renewal: Optional["weakref.finalize[Any, Lock]"] = None

    @classmethod
    def register_scripts(cls, redis_client: Any) -> None:
        """There are none to register."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def _value(self) -> bytes:
        return _clients.encoded(self._client, self._id)

    @property
    def _held(self) -> bool:
        return _value_of(self._client, self._name) == self._value

    def get_owner_id(self) -> Optional[str]:
        """The id of whoever holds it; None: nobody does."""
        value = _value_of(self._client, self._name)
        return None if value is None else value.decode("utf-8", "replace")

    def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> bool:
        """True once it is acquired; False: not at once without ``blocking``, or not within ``timeout`` s."""
        if self._held:
            raise AlreadyAcquired("Already acquired from this Lock instance.")
        wait = self._wait(blocking, timeout)
        renew = self._lock_renewal_interval is not None
        lease = None if self._expire is None else float(self._expire)
        with translated():
            warden, name = _clients.warden_of(self._client), _clients.name_of(self._client, self._name)

            def acquire(wait: Optional[float]) -> Guard:
                return _by_value.acquire(
                    warden, name, self._value, lease=lease, wait=wait, renew=renew
                ).wait()

            try:
                try:
                    guard = acquire(wait)
                except Timeout as refused:
                    if refused.reason is not None:
                        raise
                    # The limit was over before the store had answered. One try there always is.
                    guard = acquire(0.0)
            except (Busy, Timeout, Guarded) as refused:
                log.debug("%s", refused)
                return False
        _kept.keep(warden, name, self._value, guard, lease is not None)
        if renew:
            # Nobody renews for an object that is gone (C19).
            self._stop_renewal = weakref.finalize(self, _kept.leave, warden, name, self._value)
            self._stop_renewal.atexit = False
        return True

    def _wait(self, blocking: bool, timeout: Optional[float]) -> Optional[float]:
        if not blocking:
            if timeout is not None:
                raise TimeoutNotUsable("Timeout cannot be used if blocking=False")
            return 0.0
        if not timeout:
            return None
        if timeout < 0:
            raise InvalidTimeout(f"Timeout ({timeout}) cannot be less than or equal to 0")
        if self._expire and not self._lock_renewal_interval and timeout > self._expire:
            raise TimeoutTooLarge(
                f"Timeout ({timeout}) cannot be greater than expire ({self._expire})"
            )
        return float(timeout)

    def extend(self, expire: Optional[float] = None) -> None:
        """Sets the expiry to so many s from now on, or to that of the constructor."""
        length = _expire(expire) or self._expire
        if length is None:
            raise TypeError("to extend a lock, expire is needed here or in the constructor")
        with translated():
            warden, name = _clients.warden_of(self._client), _clients.name_of(self._client, self._name)
            extending = _by_value.extend(warden, name, self._value, float(length), "replace")
            try:
                extending.wait()
            except LockLost as error:
                raise self._not_acquired(error) from None
            except Endless as error:
                raise NotExpirable(
                    f"Lock {self._name} has no assigned expiration time", facts=error.facts
                ) from None

    def __enter__(self: Self) -> Self:
        if not self.acquire(blocking=self.blocking):
            raise NotAcquired(f"Lock({self._name}) is not acquired: somebody else has it.")
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]] = None,
        error: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
    ) -> None:
        try:
            self.release()
        except Error as failed:
            # What the body raised is never hidden (C03).
            if error is None:
                raise
            log.warning("%s", failed)

    def release(self) -> None:
        """Gives it back, wherever it was acquired with this id."""
        with translated():
            warden, name = _clients.warden_of(self._client), _clients.name_of(self._client, self._name)
            try:
                _by_value.release(warden, name, self._value).wait()
            except LockLost as error:
                self._ended()
                raise self._not_acquired(error) from None
            _kept.forget(warden, name, self._value)
        self._ended()
        _signal(self._client, self._signal, self._signal_expire)

    def reset(self) -> None:
        """Frees it, whoever holds it."""
        _reset(self._client, self._name, self._signal, self._signal_expire)

    def locked(self) -> bool:
        """Does anybody hold it?"""
        return bool(self._client.exists(self._name))

    def _ended(self) -> None:
        if self._stop_renewal is not None:
            self._stop_renewal()
            self._stop_renewal = None

    def _not_acquired(self, error: Error) -> NotAcquired:
        return NotAcquired(
            f"Lock {self._name} is not acquired or it already expired.", facts=error.facts
        )


def reset_all(redis_client: Any) -> None:
    """Frees all locks of python-redis-lock's naming, whoever holds them."""
    for key in list(redis_client.scan_iter(match=f"{_LOCK}*", count=1000)):
        name = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        signal = _SIGNAL + name[len(_LOCK) :]
        _reset(redis_client, name, signal, _RESET_ALL_SIGNAL_MS)


def _reset(client: Any, name: str, signal: str, signal_expire: int) -> None:
    with translated():
        warden = _clients.warden_of(client)
        for holder in warden.show(name)["holders"]:
            try:
                _by_value.release(warden, name, holder["token"]).wait()
            except LockLost:
                # It was released in between.
                continue
            _kept.forget(warden, name, holder["token"])
    _signal(client, signal, signal_expire)


def _signal(client: Any, signal: str, signal_expire: int) -> None:
    """Wakes a waiter of python-redis-lock."""
    pipeline = client.pipeline(transaction=True)
    pipeline.delete(signal)
    pipeline.lpush(signal, 1)
    pipeline.pexpire(signal, signal_expire)
    pipeline.execute()


def _value_of(client: Any, name: str) -> Optional[bytes]:
    try:
        return _clients.got(client, _clients.get(client, name))
    except UnicodeDecodeError as error:
        return bytes(error.object)


def _expire(expire: Optional[float]) -> Optional[int]:
    if not expire:
        return None
    whole = int(expire)
    if whole < 0:
        raise ValueError("A negative expire is not acceptable.")
    if whole < 1:
        raise Invalid(f"an expire of {expire!r} s is too short: it is in whole s")
    return whole


def _id(id: Any) -> str:
    if id is None:
        return base64.b64encode(os.urandom(18)).decode("ascii")
    if isinstance(id, bytes):
        try:
            return id.decode("ascii")
        except UnicodeDecodeError:
            return base64.b64encode(id).decode("ascii")
    if isinstance(id, str):
        return id
    raise TypeError(f"Incorrect type for `id`. Must be bytes/str not {type(id)}.")
