"""What we write into a task's message, and read there."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

PLEDGE = "lockwarden_pledge"
CONFLICTS = "lockwarden_conflicts"


def _header(request: Any, key: str) -> Any:
    # Celery gives a message's own headers as attributes of the request; some versions in a dictionary, too.
    value = getattr(request, key, None)
    if value is None:
        value = (getattr(request, "headers", None) or {}).get(key)
    return value


def pledge_of(request: Any) -> Optional[str]:
    """What the sender handed over to this task."""
    text = _header(request, PLEDGE)
    return text if isinstance(text, str) and text else None


def conflicts_of(request: Any) -> int:
    """How often the task found its lock busy already."""
    value = _header(request, CONFLICTS)
    return value if isinstance(value, int) and value > 0 else 0


def without_pledge(headers: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    return {key: value for key, value in (headers or {}).items() if key != PLEDGE}
