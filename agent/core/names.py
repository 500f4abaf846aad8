"""Ids that hosts choose, checked once, on entry (DESIGN D14).

An id becomes a file name, a directory name and an argument of other programs,
so it is kept to characters that mean nothing to any of them.
"""

from __future__ import annotations

import re

from agent.core.errors import Reason, invalid

ID_FORM = "1 to 64 characters of A-Z a-z 0-9 _ . -, the first a letter or digit, no '..'"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_id(kind: str, text: str) -> str:
    """Return `text` when it is a valid id; raises BAD_ID naming `kind` and the rule."""
    if _ID.fullmatch(text) is None or ".." in text:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise invalid(
            f"{shown!r} is not a valid {kind} id: expected {ID_FORM}",
            reason=Reason.BAD_ID,
            kind=kind,
            id=shown,
        )
    return text
