"""A lock's name from a task's arguments: equal calls give equal names in every process, and different ones different
names (C62). Nothing here depends on hash seeds, the order of dictionaries, or how the arguments were passed.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import inspect
import json
import re
import string
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from .._errors import Invalid

Template = Union[None, str, Callable[..., str]]

# A longer name is cut and ends with a digest, and then it is longer than this: so it is never another's.
_MOST_BYTES = 256
_DEEPEST = 50

# What stands without quotes; it has none of the characters that separate.
_BARE = re.compile(r"[A-Za-z0-9_.+\-]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS = frozenset(["null", "true", "false"])
_SEPARATORS = frozenset(":/|#@,;=& ~!%^*<>?$")


class Namer:
    """Makes the names of one task."""

    def __init__(self, template: Template, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._callable: Optional[Callable[..., str]] = None
        self._parts: Optional[List[Tuple[str, Optional[str]]]] = None
        if isinstance(template, str):
            self._parts = _parsed(template, self._signature)
        elif callable(template):
            self._callable = template
        elif template is not None:
            raise Invalid(f"a name is a text, a function of the arguments, or None, not {template!r}")

    def name(self, task: str, args: Any, kwargs: Any) -> str:
        """``args`` with ``self``, if the function has one. A ``TypeError`` says that they do not fit, as Python says."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if self._callable is not None:
            name = self._callable(*bound.args, **bound.kwargs)
            if not isinstance(name, str):
                raise Invalid(f"the function for the name of {task} gave no text, but {name!r}")
            return name
        try:
            text = self._text(task, bound.arguments)
        except RecursionError:
            raise Invalid(_advice(task, "they contain themselves")) from None
        except Invalid as invalid:
            raise Invalid(_advice(task, str(invalid))) from None
        return _short(text)

    def _text(self, task: str, arguments: Mapping[str, Any]) -> str:
        if self._parts is None:
            first = next(iter(self._signature.parameters), None)
            own = {k: v for k, v in arguments.items() if not (k == first and _is_task(v))}
            return f"{task}:{_composite(own, 0)}"
        text = []
        formatter = string.Formatter()
        for literal, field in self._parts:
            text.append(literal)
            if field is not None:
                try:
                    value, _ = formatter.get_field(field, (), arguments)
                except (LookupError, AttributeError) as error:
                    raise Invalid(f"{{{field}}} is not there: {error!r}") from None
                text.append(_value(value))
        return "".join(text)


def _parsed(template: str, signature: inspect.Signature) -> List[Tuple[str, Optional[str]]]:
    parts: List[Tuple[str, Optional[str]]] = []
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise Invalid(f"the name {template!r} is no template: {error}") from None
    for literal, field, spec, conversion in pieces:
        if spec or conversion:
            raise Invalid(
                f"the name {template!r} formats {{{field}}}, so that different values could look the same: "
                "give a function of the arguments instead"
            )
        if field is not None:
            first = re.split(r"[.\[]", field, maxsplit=1)[0]
            if first not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise Invalid(f"the name {template!r} asks for {first!r}; the task's arguments are: {known}")
            if parts and not _SEPARATORS.intersection(literal) and any(it[1] for it in parts):
                raise Invalid(
                    f"in the name {template!r} nothing separates {{{field}}} from what stands before it, so that "
                    f"different values could look the same: put one of : / | # , ; = & or a space between"
                )
        parts.append((literal, field))
    return parts


def _value(value: Any) -> str:
    """In a template: a plain word stands as it is."""
    value = _on_the_wire(value)
    if isinstance(value, str):
        text = str.__str__(value)
        if _BARE.fullmatch(text) and not _NUMBER.fullmatch(text) and text not in _WORDS:
            return text
    return _composite(value, 0)


def _composite(value: Any, depth: int) -> str:
    """As JSON, more or less: what JSON has no words for has some of its own, or is what it is on the wire."""
    if depth > _DEEPEST:
        raise RecursionError
    value = _on_the_wire(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum) and not isinstance(value, (int, str)):
        raise Invalid(f"{value!r} has no text that is the same everywhere")
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise Invalid(f"{value!r} is no number that can be compared")
        return float.__repr__(value + 0.0)  # -0.0 is 0.0
    if isinstance(value, str):
        return _quoted(str.__str__(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f'b"{bytes(value).hex()}"'
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_composite(item, depth + 1) for item in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "set[" + ",".join(sorted(_composite(item, depth + 1) for item in value)) + "]"
    if isinstance(value, Mapping):
        pairs: Dict[str, str] = {}
        for key, item in value.items():
            text = _key(key)
            if text in pairs:
                raise Invalid(f"it has the key {key!r} twice, as a number and as a text")
            pairs[text] = _composite(item, depth + 1)
        return "{" + ",".join(f"{_quoted(key)}:{pairs[key]}" for key in sorted(pairs)) + "}"
    raise Invalid(f"{_shown(value)} has no text that is the same everywhere")


def _on_the_wire(value: Any) -> Any:
    """Where Celery's JSON makes a text of it, a worker sees the text: so it is the same name."""
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, datetime.date):
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        text = value.isoformat()
        return text[:-6] + "Z" if text.endswith("+00:00") else text
    if isinstance(value, datetime.time):
        return value.isoformat()
    return value


def _key(key: Any) -> str:
    """As JSON writes it."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, (bool, int, float)):
        return _composite(key, 0)
    raise Invalid(f"the key {_shown(key)} has no text that is the same everywhere")


def _quoted(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def _shown(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _short(text: str) -> str:
    whole = text.encode()
    if len(whole) <= _MOST_BYTES:
        return text
    digest = hashlib.sha256(whole).hexdigest()
    return f"{whole[:_MOST_BYTES - 16].decode('utf-8', 'ignore')}#sha256:{digest}"


def _is_task(value: Any) -> bool:
    from celery import Task

    return isinstance(value, Task)


def _advice(task: str, why: str) -> str:
    return (
        f"the arguments of {task} give no lock's name: {why}; name what identifies the work, as in "
        '"invoice:{invoice_id}" or "order:{order.id}", or give a function that makes the name of the arguments'
    )
