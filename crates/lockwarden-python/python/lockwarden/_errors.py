"""What can go wrong, as exceptions. Codes are those of docs/ERRORS.md."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type


class Error(Exception):
    """The base of all.

    ``code`` never changes, ``retry_helps`` says whether the same call may succeed later, ``facts`` holds what else is
    known (its keys are attributes, too), and ``effect`` is ``"not_applied"``, or ``"unknown"`` where an answer was lost:
    then the lock is released before anything else.
    """

    code = "error"

    def __init__(
        self,
        message: str = "",
        *,
        retry_helps: bool = False,
        facts: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_helps = retry_helps
        self.facts: Dict[str, Any] = facts or {}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        return _again, (type(self), self.message, self.retry_helps, self.facts)

    @property
    def name(self) -> Optional[str]:
        """The lock; of several the one that it is about."""
        return self.facts.get("name")

    @property
    def effect(self) -> str:
        return str(self.facts.get("effect", "not_applied"))


def _again(
    kind: Type[Error], message: str, retry_helps: bool, facts: Dict[str, Any]
) -> Error:
    return kind(message, retry_helps=retry_helps, facts=facts)


class _Refused(Error):
    """The lock was not granted."""

    @property
    def holder(self) -> Optional[Dict[str, Any]]:
        """Who holds it: label, host, pid, site, held_s and more. None where that is not known."""
        return self.facts.get("holder")

    @property
    def reason(self) -> Optional[str]:
        """``"held"``, ``"kept"`` (for others who asked for several locks before) or ``"guarded"``."""
        return self.facts.get("reason")


class Busy(_Refused):
    """The lock is not free, and nobody wanted to wait."""

    code = "busy"


class Timeout(_Refused, TimeoutError):
    """The wait ended before the lock was granted."""

    code = "timed_out"

    @property
    def waited_s(self) -> float:
        return float(self.facts.get("waited_s", 0.0))


class Deadlock(Error):
    """The caller would wait for itself. Nothing was queued, and what it holds it still holds."""

    code = "deadlock"

    @property
    def cycle(self) -> List[Dict[str, Any]]:
        """Who holds what (``name``) and waits for the next."""
        return list(self.facts.get("cycle", []))


class OtherMode(Error):
    """The lock is in use in a way that this one cannot be beside, however long it waits."""

    code = "other_mode"


class TooDeep(Error):
    """One owner holds the lock so often that this can only be a loop."""

    code = "too_deep"


class Guarded(Error):
    """The store began anew, and grants nothing for a few seconds."""

    code = "guarded"


class NotHeld(Error, RuntimeError):
    """What was to be released or extended is not held here."""

    code = "not_held"


class LockLost(Error):
    """The lock was held, and is not any more."""

    code = "lost"

    @property
    def reason(self) -> Optional[str]:
        return self.facts.get("reason")


class ReleasedOrLost(LockLost):
    """A release was sent more than once, and the lock is not there."""

    code = "released_or_lost"


class NotHandedOver(Error):
    """Nobody has handed the lock over, or somebody has adopted it already."""

    code = "not_handed_over"


class Foreign(Error):
    """Another kind of client holds the lock, which cannot be asked for it."""

    code = "foreign"


class Endless(Error):
    """The lock is held without an end: it has no lease that could be extended."""

    code = "endless"


class Unavailable(Error, ConnectionError):
    """The store cannot serve now; a later try may succeed."""

    code = "unavailable"


class Denied(Error, PermissionError):
    """The store refuses us. Trying again does not help."""

    code = "denied"


class Invalid(Error, ValueError):
    """An argument breaks its rule, which the message names."""

    code = "invalid"


class Closed(Error, RuntimeError):
    """The warden was closed."""

    code = "closed"


_KINDS: Dict[str, Type[Error]] = {
    kind.code: kind
    for kind in (
        Busy,
        Timeout,
        Deadlock,
        OtherMode,
        TooDeep,
        Guarded,
        NotHeld,
        LockLost,
        ReleasedOrLost,
        NotHandedOver,
        Foreign,
        Endless,
        Unavailable,
        Denied,
        Invalid,
        Closed,
    )
}


def make(code: str, message: str, retry_helps: bool, facts: Dict[str, Any]) -> Error:
    """The exception for an error of the core."""
    return _KINDS.get(code, Error)(message, retry_helps=retry_helps, facts=facts)
