"""Names of locks, from what a request is about."""

from __future__ import annotations

import string
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from django.core.exceptions import BadRequest

from .._errors import Invalid
from .conf import RESERVED, conf

MOST_BYTES = 4_096


def of_request(
    wanted: Sequence[Any], request: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any]
) -> List[Any]:
    """The names, or pairs of a name and a mode, that these format strings and functions give for a request."""
    names: List[Any] = []
    for one in wanted:
        if callable(one):
            names.extend(_several(one, one(request, *args, **kwargs)))
        elif isinstance(one, tuple):
            names.append((_formatted(one[0], request, kwargs), *one[1:]))
        else:
            names.append(_formatted(one, request, kwargs))
    for name in names:
        _check(name[0] if isinstance(name, tuple) else name)
    return names


def _several(function: Any, given: Any) -> List[Any]:
    if given is None:
        raise Invalid(f"{function!r} gave no name: a return is missing? [] says that it has none")
    if isinstance(given, (str, tuple)):
        return [given]
    return list(given)


def _formatted(text: str, request: Any, kwargs: Mapping[str, Any]) -> str:
    return _Formatter().vformat(text, (), {**kwargs, "request": request})


class _Formatter(string.Formatter):
    """``str.format`` over the URL's arguments and ``request``, that knows whose fault a missing value is."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        first = field_name.split(".")[0].split("[")[0]
        if first not in kwargs:
            raise Invalid(
                f"a lock's name wants {{{field_name}}}, but the URL has only {_known(kwargs)}"
            )
        try:
            value, key = super().get_field(field_name, args, kwargs)
        except LookupError:
            # {request.POST[coupon]}: the request lacks it.
            raise BadRequest(f"{field_name} is missing") from None
        except AttributeError as error:
            raise Invalid(f"a lock's name wants {{{field_name}}}: {error}") from None
        if value is None:
            # All who have none would share one lock.
            raise Invalid(
                f"a lock's name wants {{{field_name}}}, which is None here: use a function to say what that means"
            )
        return value, key


def _known(kwargs: Dict[str, Any]) -> str:
    return ", ".join(f"{{{key}}}" for key in kwargs)


def _check(name: Any) -> None:
    """What comes with a request may be no name: then the request is bad, not the program."""
    if not isinstance(name, str):
        raise Invalid(f"a lock's name is a text, not {name!r}")
    full = conf().prefix + name
    try:
        length = len(full.encode())
    except UnicodeEncodeError:
        raise BadRequest("a lock's name is not UTF-8") from None
    if not name or length > MOST_BYTES or full.startswith(RESERVED):
        raise BadRequest("a lock's name is empty, too long, or reserved")
