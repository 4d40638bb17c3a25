"""Locks that are known by the value of their key: what all drop-ins stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from . import _native
from ._calls import Call
from ._lock import site

if TYPE_CHECKING:
    from ._native import Guard
    from ._warden import Warden


def acquire(
    warden: "Warden",
    name: str,
    value: bytes,
    *,
    lease: Optional[float],
    wait: Optional[float],
    owner: Optional[str] = None,
    renew: bool = False,
) -> "Call[Guard]":
    """Acquires it, and it is for the caller to :func:`_kept.keep` the guard. ``lease`` None: the key has no TTL; it is
    renewed then, so that it does not outlive this process."""
    options = _native.Options(
        [(name, None)],
        lease=lease,
        value=value,
        renew=renew or lease is None,
        endless=lease is None,
    )
    native, place = warden._native, site()
    return Call(
        lambda: native.acquire(options, wait=wait, owner=owner, site=place),
        lambda box, future: native.start_acquire(
            options, box, future, wait=wait, owner=owner, site=place
        ),
    )


def release(warden: "Warden", name: str, value: bytes) -> "Call[None]":
    """Releases it, whoever holds it."""
    native = warden._native
    return Call(
        lambda: _native.release_by_value(native, name, value),
        lambda box, future: _native.start_release_by_value(native, name, value, box, future),
    )


def extend(warden: "Warden", name: str, value: bytes, length: float, how: str) -> "Call[float]":
    """Sets when it ends, whoever holds it: ``add``, ``replace`` (where it has an end) or ``set``, in s."""
    native = warden._native
    return Call(
        lambda: _native.extend_by_value(native, name, value, length, how),
        lambda box, future: _native.start_extend_by_value(
            native, name, value, length, how, box, future
        ),
    )
