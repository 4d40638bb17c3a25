"""The setting ``LOCKWARDEN``: read once, checked as a whole."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Callable, Dict, List, Optional, Union

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .._errors import Invalid
from .._lock import Seconds, seconds
from . import urls

RESERVED = "lockwarden:"


@dataclasses.dataclass(frozen=True)
class Conf:
    """What ``LOCKWARDEN`` says. Its keys are these, in capitals."""

    url: Optional[str] = None
    cache: Optional[str] = None
    prefix: str = ""
    # Shorter than the 30 s after which most servers give a request up.
    wait: Optional[Seconds] = 10
    lease: Optional[Seconds] = None
    grace: Optional[Seconds] = None
    label: Optional[str] = None
    retry_after: int = 1
    answer: Union[None, str, Callable[..., Any]] = None


_FIELDS = {field.name for field in dataclasses.fields(Conf)}
_conf: Optional[Conf] = None


def conf() -> Conf:
    """The setting; :class:`ImproperlyConfigured` says everything that is wrong with it."""
    global _conf
    if _conf is None:
        given = _given()
        wrong = problems(given)
        if wrong:
            raise ImproperlyConfigured("LOCKWARDEN: " + "; ".join(wrong))
        _conf = Conf(**_lowered(given))
    return _conf


def _given() -> Any:
    from django.conf import settings

    return getattr(settings, "LOCKWARDEN", {})


def _lowered(given: Dict[str, Any]) -> Dict[str, Any]:
    return {key.lower(): value for key, value in given.items()}


def problems(given: Any = None) -> List[str]:
    """What is wrong with the setting, without asking any store."""
    if given is None:
        given = _given()
    if not isinstance(given, dict):
        return [f"it is a dict, not {given!r}"]
    unknown = [key for key in given if not isinstance(key, str) or key.lower() not in _FIELDS]
    if unknown:
        known = ", ".join(sorted(name.upper() for name in _FIELDS))
        return [f"there is no {', '.join(map(repr, unknown))}; there are {known}"]
    values = _lowered(given)
    wrong = [*_wrong_place(values), *_wrong_times(values)]
    for key in ("prefix", "label"):
        if not isinstance(values.get(key) or "", str):
            wrong.append(f"{key.upper()} is a text, not {values[key]!r}")
    if str(values.get("prefix") or "").startswith(RESERVED):
        wrong.append(f"PREFIX begins with {RESERVED!r}, which is reserved")
    retry_after = values.get("retry_after", 1)
    if isinstance(retry_after, bool) or not isinstance(retry_after, int) or retry_after < 1:
        wrong.append(f"RETRY_AFTER is a whole number of seconds, 1 or more, not {retry_after!r}")
    answer = values.get("answer")
    if answer is not None and not isinstance(answer, str) and not callable(answer):
        wrong.append(f"ANSWER is a function, or the dotted path of one, not {answer!r}")
    return wrong


def _wrong_place(values: Dict[str, Any]) -> List[str]:
    url, cache = values.get("url"), values.get("cache")
    if url is not None and cache is not None:
        return ["URL and CACHE are both given: choose one"]
    if url is not None:
        wrong = urls.problem(url)
        return [] if wrong is None else [f"URL: {wrong}"]
    if cache is not None:
        from django.conf import settings

        if cache not in settings.CACHES:
            return [f"CACHE is one of CACHES, which has no {cache!r}"]
    return []


def _wrong_times(values: Dict[str, Any]) -> List[str]:
    wrong = []
    for key, least in (("wait", 0.0), ("lease", 0.1), ("grace", 3.0)):
        value = values.get(key)
        if value is None:
            continue
        try:
            length = seconds(key.upper(), value)
        except Invalid as error:
            wrong.append(str(error))
            continue
        if length < least:
            wrong.append(f"{key.upper()} is at least {datetime.timedelta(seconds=least)} (h:m:s), not {value!r}")
    return wrong


def _changed(*, setting: str, **_: Any) -> None:
    global _conf
    if setting in ("LOCKWARDEN", "CACHES"):
        _conf = None


setting_changed.connect(_changed, dispatch_uid="lockwarden.conf")
