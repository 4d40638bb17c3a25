"""Names, labels and paths for people: they may hold anything."""

from __future__ import annotations


def shown(text: str) -> str:
    """The same on one line: what a terminal or a browser would act on (escapes, line ends, changes of direction) is
    written out."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def seconds(value: object) -> str:
    """A length of time; nothing: it has no end, or is not known."""
    return f"{value:.1f} s" if isinstance(value, (int, float)) else "–"
