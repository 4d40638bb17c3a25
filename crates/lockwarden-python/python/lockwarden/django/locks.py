"""What the store tells about locks, for the commands and the admin."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
from typing import Any, Dict, List, Optional

from .._warden import Warden


def names(its: Warden, pattern: Optional[str] = None) -> List[str]:
    """The names that hold anything, in order; ``pattern``: those that it matches, as of a shell."""
    return [name for name in its.names() if pattern is None or fnmatch.fnmatchcase(name, pattern)]


def view(its: Warden, name: str) -> Dict[str, Any]:
    """As :meth:`Warden.show`; each holder also has an ``id``, which names it and is no proof of anything."""
    shown = its.show(name)
    for holder in shown["holders"]:
        holder["id"] = id_of(holder["token"])
    return shown


def id_of(token: bytes) -> str:
    """A holder's id: whoever reads it can neither release nor adopt the lock."""
    return base64.b32encode(hashlib.sha256(token).digest()[:10]).decode().lower()


def for_json(shown: Dict[str, Any]) -> Dict[str, Any]:
    """The same without the tokens, which are bytes, and proofs."""
    holders = [
        {key: value for key, value in holder.items() if key != "token"}
        for holder in shown["holders"]
    ]
    return {**shown, "holders": holders}


def revoke(
    its: Warden, name: str, ids: List[str], *, at_once: bool = False
) -> List[Dict[str, Any]]:
    """Takes the lock away from these holders, if they still are; which of them it did, each with ``ends_in_s``."""
    revoked = []
    for holder in view(its, name)["holders"]:
        if holder["id"] in ids:
            left = its.revoke(name, holder["token"], delayed=not at_once)
            revoked.append({**holder, "ends_in_s": left})
    return revoked
